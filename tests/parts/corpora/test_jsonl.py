import json
from pathlib import Path

import pytest
from bakeoff.errors import UserError
from bakeoff.parts.corpora.jsonl import JsonLines


@pytest.fixture
def good(tmp_path: Path) -> Path:
    rows = [json.dumps({"text": f"text {number} é\n", "other": number}) for number in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:50]) + "\n\n")
    (tmp_path / "b.jsonl").write_text("\n".join(rows[50:]))
    return tmp_path


@pytest.fixture
def bad(good: Path) -> Path:
    rows = ['{"text": "fine"}', "{", '{"text": 4}', '["text"]', '{"body": "x"}', "", "\udcff", "7", '{"text": null}']
    (good / "c.jsonl").write_bytes("\n".join(rows).encode("utf-8", "surrogateescape"))
    return good


def test_every_row_is_a_document_in_order(good: Path) -> None:
    corpus = JsonLines(path=str(good))
    train, validation = (list(corpus.documents(split)) for split in ("train", "validation"))
    assert sorted(train + validation) == sorted(f"text {number} é\n" for number in range(100))
    assert 2 <= len(validation) <= 25
    assert list(JsonLines(path=str(good), validation=0).documents("train"))[:2] == ["text 0 é\n", "text 1 é\n"]


def test_bad_rows_are_refused_by_number_and_place(bad: Path) -> None:
    with pytest.raises(UserError, match="7 of 108 rows hold no text in 'text'") as caught:
        list(JsonLines(path=str(bad)).documents("train"))
    message = str(caught.value)
    for fault in (
        "c.jsonl:2: no JSON",
        "c.jsonl:3: field 'text' is a int",
        "c.jsonl:4: a list, no object",
        "c.jsonl:5: no field 'text' among 'body'",
        "c.jsonl:7: no JSON",
        "and 2 more",
        "bad_rows: skip",
    ):
        assert fault in message


def test_bad_rows_are_refused_also_without_validation(bad: Path) -> None:
    with pytest.raises(UserError, match="7 of 108 rows"):
        list(JsonLines(path=str(bad), validation=0).documents("train"))


def test_bad_rows_are_skipped_on_demand_and_told_once(bad: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = JsonLines(path=str(bad), bad_rows="skip")
    assert sum(len(list(corpus.documents(split))) for split in ("train", "validation")) == 101
    assert caplog.text.count("7 of 108 rows") == 1


def test_nothing_usable_is_refused_even_when_skipping(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": 1}\n')
    with pytest.raises(UserError, match="1 of 1 rows"):
        list(JsonLines(path=str(tmp_path), bad_rows="skip").documents("train"))
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match="holds no row"):
        list(JsonLines(path=str(tmp_path)).documents("train"))


def test_one_row_is_cut_in_two(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"body": "one two three four five six seven eight nine ten"}))
    corpus = JsonLines(path=str(tmp_path), field="body")
    assert list(corpus.documents("train")) == ["one two three four five six seven eight "]
    assert list(corpus.documents("validation")) == ["nine ten"]


def test_arguments_are_checked_and_fingerprinted(good: Path) -> None:
    with pytest.raises(UserError, match="bad_rows is 'ignore'; it must be 'error' or 'skip'"):
        JsonLines(path=str(good), bad_rows="ignore")
    prints = {
        JsonLines(path=str(good)).fingerprint(),
        JsonLines(path=str(good), field="other").fingerprint(),
        JsonLines(path=str(good), bad_rows="skip").fingerprint(),
        JsonLines(path=str(good / "a.jsonl")).fingerprint(),
    }
    assert len(prints) == 4
