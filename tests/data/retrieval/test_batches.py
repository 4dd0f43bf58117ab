"""What batches hold, against a search by hand of every chunk of every row."""

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
import torch
from bakeoff.data import Data
from bakeoff.errors import UserError


def by_hand(data: Data, split: str, row: int, length: int, texts: dict[str, list[str]]) -> list[tuple[int, list]]:
    """For each whole chunk of a row: its last token's place, and its neighbours as lists of ids, nearest first."""
    chunk, k, end = data.retrieval.chunk, data.retrieval.k, data.tokenizer.end
    stream = [(number, token) for number, text in enumerate(texts[split]) for token in [*text.encode(), end]]
    window = stream[row * length : (row + 1) * length]
    database = []
    for number, text in enumerate(texts["train"]):
        ids = [*text.encode(), end]
        database += [(number, ids[at : at + 2 * chunk], text[at : at + chunk]) for at in range(0, len(text), chunk)]
    runs: list[list[int]] = []
    for place, (number, _) in enumerate(window):
        begins = place == 0 or (data.isolate_documents and window[place - 1][0] != number)
        runs += [[place]] if begins else []
        runs[-1] = [*runs[-1], place] if not begins else runs[-1]
    found = []
    for run in runs:
        for at in range(0, len(run) - chunk + 1, chunk):
            places = run[at : at + chunk]
            seeing = places if data.isolate_documents else range(places[0], length + 1)
            own = {number for number, _ in stream[row * length :][seeing[0] : seeing[-1] + 1]}
            own = own if split == "train" else set()
            query = bytes(window[place][1] for place in places if window[place][1] < 256).decode()
            others = [(apart(query, text), ids) for number, ids, text in database if number not in own]
            found.append((places[-1], [ids for _, ids in sorted(others, key=lambda each: each[0])[:k]]))
    return found


def apart(one: str, other: str) -> int:
    return sum(abs(one.count(letter) - other.count(letter)) for letter in set(one + other))


def check(data: Data, batch: dict[str, torch.Tensor], row: int, wanted: list[tuple[int, list]]) -> None:
    tokens, real, last = (batch[name][row] for name in ("neighbours", "neighbours_real", "neighbours_last"))
    C, k, size = tokens.shape
    assert (k, size) == (data.retrieval.k, 2 * data.retrieval.chunk)
    assert last.tolist() == [place for place, _ in wanted] + [-1] * (C - len(wanted))
    for slot in range(C):
        for rank in range(k):
            ids = wanted[slot][1][rank : rank + 1] if slot < len(wanted) else []
            ids = ids[0] if ids else []
            assert tokens[slot, rank].tolist() == ids + [data.tokenizer.padding] * (size - len(ids))
            assert real[slot, rank].tolist() == [True] * len(ids) + [False] * (size - len(ids))


def row_of(batch: dict[str, torch.Tensor], data: Data, row: int, split: str, length: int) -> int:
    """Which row of the split a row of a batch is."""
    stream = data.store(split).tokens
    ids = batch["tokens"][row].tolist()
    starts = range(0, len(stream), length)
    return next(i for i, at in enumerate(starts) if stream[at : at + length + 1].tolist() == ids[: len(stream) - at])


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(("chunk", "k"), [(4, 2), (3, 1)])
def test_every_number_of_every_batch_is_that_of_a_search_by_hand(
    retrieving: Callable[..., Data], ragged: list[str], chunk: int, k: int, isolate: bool, live: bool
) -> None:
    texts = {"train": ragged, "validation": [*ragged[3:9], "x" * 50, "", "abab"]}
    data = retrieving(*texts.values(), chunk=chunk, k=k, isolate_documents=isolate, live=live)
    seen = 0
    for batch in islice(data.training(tokens_wanted=17, seed=0), 15):
        for row in range(len(batch["tokens"])):
            number = row_of(batch, data, row, "train", 16)
            check(data, batch, row, by_hand(data, "train", number, 16, texts))
            seen += int((batch["neighbours_last"][row] >= 0).sum())
    number = 0
    for batch in data.validation(tokens_wanted=17):
        for row in range(len(batch["tokens"])):
            check(data, batch, row, by_hand(data, "validation", number, 16, texts))
            number += 1
    assert seen
    assert number == -(-(len(data.store("validation").tokens) - 1) // 16)


@pytest.mark.parametrize("isolate", [False, True])
def test_rows_of_any_length_are_searched_for(retrieving: Callable[..., Data], ragged: list[str], isolate: bool) -> None:
    texts = {"train": ragged, "validation": [*ragged[3:9], "x" * 50, "", "abab"]}
    data = retrieving(*texts.values(), isolate_documents=isolate)
    for split in texts:
        for length in (3, 24):
            numbers = np.array([0, 5, 2, 10**6])  # the last one is behind the end
            batch = data.rows(split, numbers * length, length=length, wanted=length + 1)
            assert batch["tokens"].shape == (4, length + 1)
            for row, number in enumerate(numbers.tolist()):
                check(data, batch, row, by_hand(data, split, number, length, texts))


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("chunk", [4, 64])
def test_no_neighbour_is_of_a_document_that_its_chunk_touches_or_that_sees_it(
    retrieving: Callable[..., Data], chunk: int, isolate: bool
) -> None:
    text = "".join(chr(97 + (number * number) % 26) for number in range(150))
    data = retrieving([text] * 6, chunk=chunk, length=128, batch_tokens=128, isolate_documents=isolate)
    store, lookup = data.store("train"), data.lookup()
    ahead, last = data.retrieved.find("train"), -1
    for row, end in enumerate(ahead.ends.tolist()):
        batch = data.retrieved.rows(data.training(tokens_wanted=129, seed=0).dataset.rows)[row]
        held = batch["neighbours_last"][0]
        for slot, place in enumerate(held[held >= 0].tolist()):
            stops = row * 128 + place
            seeing = min(stops if isolate else row * 128 + 128, len(store.tokens) - 1)
            own = set(np.searchsorted(store.ends, np.arange(stops - chunk + 1, seeing + 1), side="right").tolist())
            found = ahead.numbers[last + 1 + slot]
            assert (found >= 0).all()
            assert not own & set(lookup.documents(found).tolist())
        assert end - 1 - last == int((held >= 0).sum())
        last = end - 1
    assert (ahead.scores.max(1) == 0).any()  # there are copies, and they are found


@pytest.mark.parametrize("live", [False, True])
def test_workers_and_ranks_change_nothing(retrieving: Callable[..., Data], ragged: list[str], live: bool) -> None:
    def batches(workers: int, ranks: int, searched: bool) -> list[dict[str, torch.Tensor]]:
        data = retrieving(ragged, ragged[::3], workers=workers, live=searched, micro_batch=1)
        loaders = [iter(data.training(tokens_wanted=17, seed=1, ranks=ranks, rank=rank)) for rank in range(ranks)]
        trained = [next(loader) for _ in range(8 // ranks) for loader in loaders]
        held = [data.validation(tokens_wanted=17, ranks=ranks, rank=rank, batch=1) for rank in range(ranks)]
        return trained + [batch for step in zip(*held, strict=True) for batch in step]

    alone = batches(0, 1, False)
    for others in (batches(2, 1, live), batches(0, 2, live)):
        for one, other in zip(alone, others, strict=False):
            for name, value in one.items():
                assert torch.equal(value, other[name]) if value is not None else other[name] is None


def test_rows_of_padding_have_no_neighbours(retrieving: Callable[..., Data]) -> None:
    data = retrieving(["abcdefgh" * 6], chunk=4)
    *_, last = data.validation(tokens_wanted=17, ranks=4, rank=3, batch=1)
    assert not last["real"].any()
    assert last["neighbours"].shape == (1, 0, 2, 8)
    assert last["neighbours_last"].shape == (1, 0)


def test_lanes_are_refused(retrieving: Callable[..., Data], ragged: list[str]) -> None:
    data = retrieving(ragged)
    for loader in (data.validation, lambda **told: data.training(seed=0, **told)):
        with pytest.raises(UserError, match=r"trainer\.stateful: true with data\.retrieval"):
            loader(tokens_wanted=17, stateful=True)
