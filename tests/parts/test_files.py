import os
from pathlib import Path

import pytest
from bakeoff.errors import UserError
from bakeoff.parts.files import read_json, write_json, write_whole


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
