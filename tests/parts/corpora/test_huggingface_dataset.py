import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from bakeoff.errors import MissingExtra, UserError
from bakeoff.parts.corpora import huggingface_dataset
from bakeoff.parts.corpora.huggingface_dataset import HuggingFaceDataset

ROWS = {
    "train": [{"text": f"text {number}"} for number in range(40)],
    "test": [{"text": f"text {number}"} for number in (3, 5, 100)],
}


class Builder:
    hash = "abc"
    info = SimpleNamespace(license="cc0")

    def as_streaming_dataset(self, split: str) -> Iterator[dict[str, str]]:
        if split not in ROWS:
            raise ValueError(f"Bad split: {split}. Available splits: {list(ROWS)}")
        return iter(ROWS[split])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the library `datasets` that knows one dataset."""

    def load_dataset_builder(path: str, name: str | None, revision: str | None) -> Builder:
        if path != "known":
            raise FileNotFoundError(f"dataset '{path}' doesn't exist")
        return Builder()

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset_builder=load_dataset_builder))
    monkeypatch.setattr(huggingface_dataset, "find_spec", lambda name: True)


@pytest.mark.usefixtures("library")
def test_a_share_of_one_split_is_held_out() -> None:
    corpus = HuggingFaceDataset(path="known", validation=0.2)
    train, validation = (list(corpus.documents(split)) for split in ("train", "validation"))
    assert sorted(train + validation) == sorted(row["text"] for row in ROWS["train"])
    assert 2 <= len(validation) <= 18
    assert corpus.licence == "cc0"


@pytest.mark.usefixtures("library")
def test_training_rows_that_stand_in_the_validation_split_are_left_out() -> None:
    corpus = HuggingFaceDataset(path="known", validation_split="test")
    assert list(corpus.documents("validation")) == ["text 3", "text 5", "text 100"]
    assert list(corpus.documents("train")) == [f"text {number}" for number in range(40) if number not in (3, 5)]


@pytest.mark.usefixtures("library")
def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="row 0 of split 'train' of 'known' holds no text in 'body'; its fields: text"):
        next(HuggingFaceDataset(path="known", field="body", validation=0).documents("train"))
    with pytest.raises(UserError, match=r"Bad split: dev\. Available splits"):
        next(HuggingFaceDataset(path="known", split="dev", validation=0).documents("train"))
    with pytest.raises(UserError, match="cannot load 'unknown'"):
        HuggingFaceDataset(path="unknown").fingerprint()
    with pytest.raises(UserError, match="both 'train'"):
        HuggingFaceDataset(path="known", validation_split="train")


@pytest.mark.usefixtures("library")
def test_the_fingerprint_changes_with_the_dataset_and_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    first = HuggingFaceDataset(path="known").fingerprint()
    assert first == HuggingFaceDataset(path="known").fingerprint()
    assert first != HuggingFaceDataset(path="known", validation_split="test").fingerprint()
    monkeypatch.setattr(Builder, "hash", "def")
    assert first != HuggingFaceDataset(path="known").fingerprint()


def test_without_the_library_the_error_holds_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_dataset, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'bakeoff\[hf\]'"):
        HuggingFaceDataset(path="known")


def test_the_real_library_reads_a_local_folder(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for split, rows in (("train", ROWS["train"]), ("validation", ROWS["test"])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = HuggingFaceDataset(path=str(tmp_path), validation_split="validation")
    assert len(list(corpus.documents("train"))) == 38
    assert list(corpus.documents("validation")) == [row["text"] for row in ROWS["test"]]
