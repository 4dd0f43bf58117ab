from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bakeoff.errors import UserError
from bakeoff.interfaces import Dialogue, Turn
from bakeoff_align.corpora.conversations import Conversations

U, A = "user", "assistant"


def written(folder: Path, *rows: Any) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def read(folder: Path, *rows: Any, **arguments: Any) -> list[Dialogue]:
    return list(Conversations(path=written(folder, *rows), validation=0, **arguments).dialogues("train"))


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_conversation_is_prompt_and_completion(tmp_path: Path) -> None:
    turns = [said("system", "Be brief."), said(U, "2+2?"), said(A, "4"), said(U, "3+3?")]
    found = read(tmp_path, {"messages": [*turns, said(A, " 6\n")]}, {"messages": turns, "prompt": "not read"})
    prompt = (Turn("system", "Be brief."), Turn(U, "2+2?"), Turn(A, "4"), Turn(U, "3+3?"))
    assert found == [Dialogue(prompt=prompt, completion=" 6\n"), Dialogue(prompt=prompt)]


def test_prompt_and_completion_are_texts_or_messages(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "completion": "b"},
        {"prompt": [said(U, "a")], "completion": [said(A, "b")]},
        {"prompt": "a"},
        {"prompt": "a", "completion": "b", "label": True},
        {"prompt": "a", "completion": "b", "label": 0.25},
    ]
    prompt = (Turn(U, "a"),)
    assert read(tmp_path, *rows) == [
        Dialogue(prompt=prompt, completion="b"),
        Dialogue(prompt=prompt, completion="b"),
        Dialogue(prompt=prompt),
        Dialogue(prompt=prompt, completion="b", right=1.0),
        Dialogue(prompt=prompt, completion="b", right=0.25),
    ]


def test_fields_of_common_data_sets(tmp_path: Path) -> None:
    sharegpt = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    roles = {"human": U, "gpt": A}
    found = read(tmp_path, sharegpt, messages="conversations", role="from", content="value", roles=roles)
    assert found == [Dialogue(prompt=(Turn(U, "a"),), completion="b")]
    alpaca = [
        {"instruction": "Sum up.", "input": "Long.", "output": "L."},
        {"instruction": "Hi", "input": "", "output": "x"},
    ]
    found = read(tmp_path, *alpaca, prompt="instruction", context="input", completion="output")
    assert found == [
        Dialogue(prompt=(Turn(U, "Sum up.\n\nLong."),), completion="L."),
        Dialogue(prompt=(Turn(U, "Hi"),), completion="x"),
    ]
    gsm8k = {"question": "q", "answer": "half of 8 is <<8/2=4>>4\n#### 4"}
    (found,) = read(tmp_path, gsm8k, prompt="question", completion="answer", answer_marker="#### ")
    assert (found.answer, found.completion) == ("4", gsm8k["answer"])
    (found,) = read(tmp_path, {"prompt": "q", "final": "7"}, answer="final")
    assert (found.answer, found.completion) == ("7", None)


BAD = [
    ({"text": "a"}, "neither field 'messages' nor field 'prompt' among 'text'"),
    ({"messages": []}, "field 'messages' is an empty list"),
    ({"messages": "a"}, "field 'messages' is a str, no list of messages"),
    ({"messages": [said(U, "a"), "b"]}, "message 2 of 'messages' is a str, no object"),
    ({"messages": [{"role": U}]}, "message 1 of 'messages': no field 'content' among 'role'"),
    (
        {"messages": [said(U, "a"), {"role": A, "content": None}]},
        "message 2 of 'messages': field 'content' is a NoneType",
    ),
    ({"prompt": 1, "completion": "b"}, "field 'prompt' is a int, no text"),
    ({"prompt": "a", "completion": None}, "field 'completion' is a NoneType, no text"),
    (
        {"prompt": "a", "completion": [said(U, "b")]},
        "the last message of 'completion' is by 'user', not by 'assistant'",
    ),
    ({"prompt": "a", "completion": "b", "label": "yes"}, "field 'label' is 'yes', no finite number"),
    (
        {"prompt": "a", "completion": "b", "label": 2},
        "field 'label' is 2.0; it is true, false, or a number from 0 to 1",
    ),
    ("[1]", "a list, no object"),
    ("{", "no JSON"),
]


@pytest.mark.parametrize(("row", "fault"), BAD)
def test_a_bad_row_is_refused_by_file_and_line_or_counted(
    row: Any, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"prompt": "a", "completion": "b"}
    with pytest.raises(UserError, match="1 of 2 rows hold no conversation") as caught:
        read(tmp_path, good, row)
    assert f"rows.jsonl:2: {fault}" in str(caught.value)
    assert len(read(tmp_path, good, row, bad_rows="skip")) == 1
    assert f"rows.jsonl:2: {fault}" in caplog.text


def test_a_completion_without_the_marker_is_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no '#### ' in the completion, behind which its final answer stands"):
        read(tmp_path, {"prompt": "a", "completion": "5"}, answer_marker="#### ")


def test_equal_prompts_stand_on_one_side(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{number % 40}", "completion": f"a{number}"} for number in range(200)]
    path = written(tmp_path, *rows)
    train, held = (list(Conversations(path=path).dialogues(split)) for split in ("train", "validation"))
    assert len(train) + len(held) == 200
    assert not {d.prompt for d in train} & {d.prompt for d in held}
    assert len(held) % 5 == 0 < len(held)
    again = [list(Conversations(path=path, seed=1).dialogues(split)) for split in ("train", "validation")]
    assert again != [train, held]
    assert list(Conversations(path=path).documents("train"))[:1] == [
        f"{train[0].prompt[0].text}\n{train[0].completion}"
    ]


def test_without_prompts_equal_completions_stand_on_one_side(tmp_path: Path) -> None:
    rows = [{"messages": [said(A, f"text {number}")]} for number in range(40)]
    corpus = Conversations(path=written(tmp_path, *rows))
    assert sum(len(list(corpus.documents(split))) for split in ("train", "validation")) == 40
    assert list(corpus.documents("validation"))


def test_one_prompt_cannot_be_dealt_out(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "c"})
    with pytest.raises(UserError, match=r"validation is 0.1, but all dialogues have the same prompt.*validation: 0"):
        list(Conversations(path=path).dialogues("train"))


def test_what_decides_the_dialogues_decides_the_fingerprint(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "a", "completion": "b"})
    changes = [{}, {"role": "from"}, {"context": "input"}, {"answer_marker": "####"}, {"validation": 0}, {"seed": 1}]
    prints = {Conversations(path=path, **change).fingerprint() for change in changes}
    assert len(prints) == len(changes)
    assert Conversations(path=path).fingerprint() in prints
    written(tmp_path, {"prompt": "a", "completion": "c"})
    assert Conversations(path=path).fingerprint() not in prints
