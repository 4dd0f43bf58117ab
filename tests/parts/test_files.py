import os
from pathlib import Path

import pytest
from bakeoff.errors import UserError
from bakeoff.parts.files import read_json, remove, settle, stepping_aside, write_json, write_whole


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*file: No space left on device; it takes 3 bytes"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"x": [1, "é\ud800"], "b": None})
    write_json(tmp_path / "b", {"b": None, "x": [1, "é\ud800"]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"x": [1, "é\ud800"], "b": None}


def test_what_steps_aside_is_deleted_after_or_put_back(tmp_path: Path) -> None:
    path = tmp_path / "thing"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(KeyError), stepping_aside(path):
        assert not path.exists()
        raise KeyError
    assert (path / "old").exists()
    with stepping_aside(path):
        path.write_bytes(b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["thing"]
    assert path.read_bytes() == b"new"


def test_files_folders_and_what_is_not_there_are_removed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.tmp").mkdir()  # of a removal that was interrupted
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "file").touch()
    for name in ("folder", "file", "nothing"):
        remove(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_a_crash_leaves_is_settled(tmp_path: Path) -> None:
    for name in ("half.tmp", "alone.old", "both", "both.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    (tmp_path / "file.tmp").touch()
    settle(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["alone", "alone.old", "both", "both"]
