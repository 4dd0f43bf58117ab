import pickle
import random
from collections.abc import Callable

import pytest
import torch
from bakeoff.data import Data
from bakeoff.data.packing import Windows
from bakeoff.errors import UserError

END, PAD = 257, 256


def rows_of(loader: object, count: int | None = None) -> list[list[int]]:
    found: list[list[int]] = []
    for batch in loader:
        real = batch["real"]
        for number, row in enumerate(batch["tokens"]):
            found.append((row if real is None else row[real[number]]).tolist())
        if count is not None and len(found) >= count:
            return found[:count]
    return found


def test_one_end_id_follows_each_document(make: Callable[..., Data]) -> None:
    a, b, c = map(ord, "abc")
    assert make(["ab", "c"]).store("train").tokens.tolist() == [a, b, END, c, END]


def test_empty_documents_and_those_of_one_row_have_one_end_id_too(make: Callable[..., Data]) -> None:
    texts = ["", "x" * 8, "", "", "y" * 7, "z" * 9, ""]
    store = make(texts).store("train")
    assert (store.tokens == END).sum() == len(texts)
    assert [bytes(store.document(number).astype("uint8")).decode() for number in range(len(texts))] == texts
    assert store.ends.tolist() == [1, 10, 11, 12, 20, 30, 31]


def test_each_token_is_a_target_once_an_epoch(make: Callable[..., Data]) -> None:
    stream = make(["".join(map(chr, range(33, 33 + 77)))], batch_tokens=8).store("train").tokens.tolist()
    data = make(["".join(map(chr, range(33, 33 + 77)))], batch_tokens=8)
    windows = Windows(len(stream), 8, 9)
    assert (len(stream), windows.whole, windows.dropped) == (78, 9, 5)
    rows = rows_of(data.training(tokens_wanted=9, seed=0), windows.whole)
    targets = [token for row in sorted(rows, key=lambda row: stream.index(row[0])) for token in row[1:]]
    assert targets == stream[1 : 1 + 72]


@pytest.mark.parametrize(("length", "wanted"), [(8, 9), (8, 8), (8, 12), (1, 2), (5, 6)])
@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 10, 16, 17, 18, 40, 41])
def test_rows_are_counted_as_they_are_cut(tokens: int, length: int, wanted: int) -> None:
    windows = Windows(tokens, length, wanted)
    starts = range(0, max(tokens, 1) + length, length)
    whole = [start for start in starts if start + wanted <= tokens]
    partial = [start for start in starts if start + (wanted - length) < tokens]
    assert windows.whole == len(whole)
    assert windows.all == len(partial)
    assert windows.dropped == tokens - (whole[-1] + wanted if whole else 0)


def test_documents_in_a_row_are_told_apart(make: Callable[..., Data]) -> None:
    batch = next(iter(make(["ab", "", "cdefghi", "k"], length=6, batch_tokens=12).validation(tokens_wanted=7)))
    assert (
        batch["tokens"].tolist()
        == [
            [97, 98, END, END, 99, 100, 101],
            [101, 102, 103, 104, 105, END, 107],
            [107, END, PAD, PAD, PAD, PAD, PAD],
        ][: len(batch["tokens"])]
    )
    assert batch["documents"].tolist()[0] == [0, 0, 0, 1, 2, 2, 2]
    assert batch["documents"].tolist()[1] == [2, 2, 2, 2, 2, 2, 3]
    assert batch["documents"].dtype == batch["tokens"].dtype == torch.int64


def test_documents_are_none_where_no_row_holds_two_or_none_are_to_be_isolated(make: Callable[..., Data]) -> None:
    texts = ["x" * 15, "y" * 15]
    loader = make(texts, length=8, batch_tokens=8).validation(tokens_wanted=8)
    assert [batch["documents"] for batch in loader] == [None] * 4
    loader = make(texts, length=5, batch_tokens=5, isolate_documents=False).validation(tokens_wanted=6)
    assert [batch["documents"] for batch in loader] == [None] * len(loader)


def test_documents_agree_with_a_plain_count(make: Callable[..., Data], texts: list[str]) -> None:
    data = make(texts, length=50, batch_tokens=200)
    tokens = data.store("train").tokens.astype("int64")
    numbers = (tokens == END).cumsum() - (tokens == END)
    start = 0
    for batch in data.validation(tokens_wanted=51):
        for number in range(len(batch["tokens"])):
            expected = numbers[start : start + 51]
            found = batch["documents"][number] if batch["documents"] is not None else torch.full((51,), expected[0])
            real = torch.ones(51, dtype=torch.bool) if batch["real"] is None else batch["real"][number]
            assert found[real].tolist() == expected.tolist()
            start += 50


def test_validation_leaves_out_nothing(make: Callable[..., Data], texts: list[str]) -> None:
    data = make(texts[:40], length=16, batch_tokens=64)
    stream = data.store("validation").tokens.tolist()
    for batch in (1, 3, 1000):
        rows = rows_of(data.validation(tokens_wanted=17, batch=batch))
        assert [token for row in rows for token in row[1:]] == stream[1:]
    assert rows_of(data.validation(tokens_wanted=16)) == [stream[i : i + 16] for i in range(0, len(stream), 16)]


def test_limited_validation_is_spread_over_the_split(make: Callable[..., Data]) -> None:
    data = make(["".join(map(chr, range(33, 113)))], length=8, batch_tokens=16)
    rows = rows_of(data.validation(tokens_wanted=9, tokens=40))
    assert [row[0] - 33 for row in rows] == [0, 16, 32, 48, 64]
    assert rows_of(data.validation(tokens_wanted=9, tokens=10**9)) == rows_of(data.validation(tokens_wanted=9))
    with pytest.raises(UserError, match=r"validation\.tokens is 0"):
        data.validation(tokens_wanted=9, tokens=0)


def test_too_little_text_says_what_there_is_and_what_it_takes(make: Callable[..., Data]) -> None:
    data = make(["abc", "d"], validation=[], length=8)
    with pytest.raises(UserError, match=r"train split holds 6 tokens in 2 documents, but one row takes 9 .*at most 5"):
        data.training(tokens_wanted=9, seed=0)
    with pytest.raises(UserError, match="validation split holds 0 tokens in 0 documents, but one row takes 2"):
        data.validation(tokens_wanted=9)
    assert rows_of(make(["abc", "d"], length=5, batch_tokens=5).training(tokens_wanted=6, seed=0), 1) == [
        [97, 98, 99, END, 100, END]
    ]


def test_what_is_dropped_is_logged(make: Callable[..., Data], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        make(["x" * 20]).training(tokens_wanted=9, seed=0)
    assert "2 rows of 9 tokens; 4 of 21 tokens at the end fill no row" in caplog.text


def test_a_step_that_is_larger_than_the_split_is_told(
    make: Callable[..., Data], caplog: pytest.LogCaptureFixture
) -> None:
    batch = next(iter(make(["x" * 30]).training(tokens_wanted=9, seed=0)))
    assert batch["tokens"].shape == (8, 9)
    assert "takes 8 rows, but the train split has 3" in caplog.text


def test_a_store_goes_to_another_process_by_its_place(make: Callable[..., Data]) -> None:
    store = make(["x" * 10_000]).store("train")
    sent = pickle.dumps(store)
    assert len(sent) < 1000
    assert pickle.loads(sent).tokens.tolist() == store.tokens.tolist()


def test_random_documents_come_back_whole(make: Callable[..., Data]) -> None:
    rng = random.Random(1)
    texts = ["".join(chr(rng.choice([65, 233, 0x4F60, 0x1F917])) for _ in range(rng.randrange(30))) for _ in range(50)]
    store = make(texts).store("train")
    assert [bytes(store.document(n).astype("uint8")).decode() for n in range(50)] == texts
    assert store.text_bytes == sum(len(text.encode()) for text in texts)
