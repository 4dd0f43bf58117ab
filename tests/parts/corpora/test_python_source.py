import json
from pathlib import Path

import pytest
from bakeoff.parts.corpora.python_source import PythonSource


def test_it_is_the_running_interpreters_library() -> None:
    corpus = PythonSource()
    train, validation = (list(corpus.documents(split)) for split in ("train", "validation"))
    texts = set(train) | set(validation)
    assert Path(json.__file__).read_text(encoding="utf-8") in texts
    assert Path(pytest.__file__).read_text(encoding="utf-8") not in texts
    assert not set(train) & set(validation)
    assert 0.05 < len(validation) / (len(train) + len(validation)) < 0.15
    assert sum(len(text.encode()) for text in train + validation) <= corpus.size()
    assert list(PythonSource().documents("validation")) == validation


def test_files_that_are_no_text_are_left_out_and_content_decides(tmp_path: Path) -> None:
    for name, content in {"b.py": b"b", "a.py": b"a", "bad.py": b"\xff", "empty.py": b"", "a.txt": b"no"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "foreign.py").write_bytes(b"foreign")
    corpus = PythonSource(validation=0)
    corpus.folder = tmp_path
    assert list(corpus.documents("train")) == ["a", "b"]
    first = corpus.fingerprint()
    (tmp_path / "b.py").write_bytes(b"c")
    assert corpus.fingerprint() != first
