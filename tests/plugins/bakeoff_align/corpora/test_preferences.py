from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bakeoff.errors import UserError
from bakeoff.interfaces import Dialogue, Turn
from bakeoff_align.corpora.preferences import Preferences

ASKED = [{"role": "user", "content": "a"}]
B, C = ({"role": "assistant", "content": content} for content in "bc")
PAIR = Dialogue(prompt=(Turn("user", "a"),), completion="b", rejected="c")


def read(folder: Path, *rows: Any, **arguments: Any) -> list[Dialogue]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(Preferences(path=str(folder), validation=0, **arguments).dialogues("train"))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": ASKED, "chosen": [B], "rejected": "c"},
        {"prompt": "a", "chosen": [*ASKED, B], "rejected": [*ASKED, C]},
        {"chosen": [*ASKED, B], "rejected": [*ASKED, C]},
    ],
)
def test_a_pair_is_texts_or_the_last_of_messages(row: Any, tmp_path: Path) -> None:
    assert read(tmp_path, row) == [PAIR]


def test_a_margin_is_kept(tmp_path: Path) -> None:
    (found,) = read(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1.5})
    assert found.margin == 1.5
    fields = {"prompt": "question", "chosen": "better", "rejected": "worse", "margin": "by"}
    (found,) = read(tmp_path, {"question": "a", "better": "b", "worse": "c", "by": 2}, **fields)
    assert (found.completion, found.rejected, found.margin) == ("b", "c", 2.0)


OTHER = [{"role": "user", "content": "other"}]
BAD = [
    ({"prompt": "a", "chosen": "b", "rejected": "b"}, "the answers in 'chosen' and 'rejected' are equal: 'b'"),
    ({"prompt": "a", "chosen": "", "rejected": "b"}, "the answer in 'chosen' is empty"),
    ({"prompt": "a", "chosen": "b", "rejected": ""}, "the answer in 'rejected' is empty"),
    ({"prompt": "a", "chosen": "b"}, "no field 'rejected' among 'prompt', 'chosen'"),
    ({"chosen": "b", "rejected": "c"}, "no field 'prompt', and no messages before both answers"),
    ({"chosen": [*ASKED, B], "rejected": [C]}, "no field 'prompt', and no messages before both answers"),
    ({"chosen": [*ASKED, B], "rejected": [*OTHER, C]}, "before the answer in 'rejected' are not those in 'chosen'"),
    ({"prompt": "a", "chosen": [*OTHER, B], "rejected": "c"}, "before the answer in 'chosen' are not the prompt in"),
    ({"prompt": "a", "chosen": ASKED, "rejected": "c"}, "last message of 'chosen' is by 'user', not by 'assistant'"),
    ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "much"}, "'margin' is 'much', no finite number"),
    ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": float("nan")}, "'margin' is nan, no finite number"),
]


@pytest.mark.parametrize(("row", "fault"), BAD)
def test_a_bad_pair_is_refused_by_file_and_line_or_counted(
    row: Any, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    with pytest.raises(UserError, match="1 of 2 rows hold no pair of answers") as caught:
        read(tmp_path, good, row)
    assert "rows.jsonl:2: " in str(caught.value)
    assert fault in str(caught.value)
    assert read(tmp_path, good, row, bad_rows="skip") == [PAIR]
    assert fault in caplog.text


def test_texts_for_a_tokenizer_are_prompt_and_chosen_answer(tmp_path: Path) -> None:
    read(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c"})
    assert list(Preferences(path=str(tmp_path), validation=0).documents("train")) == ["a\nb"]
