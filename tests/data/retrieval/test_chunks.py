"""Which chunks a database has: cut by hand here, document by document."""

from collections.abc import Callable

import numpy as np
import pytest
from bakeoff.data import Data
from bakeoff.data.retrieval.chunks import ChunkTable, ChunkTexts


def cut(texts: list[str], chunk: int) -> list[tuple[int, str]]:
    """Document and text of each chunk."""
    return [(n, text[at : at + chunk]) for n, text in enumerate(texts) for at in range(0, len(text), chunk)]


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_each_chunk_has_one_entry_its_text_and_what_follows_it(
    make: Callable[..., Data], ragged: list[str], chunk: int
) -> None:
    texts = ["", *ragged, "abcdefgh", ""]
    data = make(texts)
    table, wanted = ChunkTable(data.store("train"), chunk), cut(texts, chunk)
    numbers = np.arange(len(table))
    assert table.documents(numbers).tolist() == [document for document, _ in wanted]
    held = ChunkTexts(table, data.tokenizer)
    assert len(held) == len(table) == len(wanted)
    assert held[:] == [text for _, text in wanted]
    assert held[2:7] == held[:][2:7]
    assert held[len(held) - 1 : len(held) + 5] == held[:][-1:]
    tokens, real = table.tokens(numbers, padding=data.tokenizer.padding)
    at = 0
    for number, text in enumerate(texts):
        for start in range(0, len(text), chunk):
            ids = [*text[start : start + 2 * chunk].encode(), data.tokenizer.end][: 2 * chunk]
            assert tokens[at][real[at]].tolist() == ids
            assert table.firsts[number] <= at < table.firsts[number + 1]
            at += 1


def test_no_chunk_is_all_padding(make: Callable[..., Data]) -> None:
    data = make(["abc", "defg"])
    tokens, real = ChunkTable(data.store("train"), 2).tokens(np.array([[-1, 0], [3, -1]]), padding=256)
    assert real.tolist() == [[[False] * 4, [True] * 4], [[True, True, True, False], [False] * 4]]
    assert tokens.tolist() == [[[256] * 4, [97, 98, 99, 257]], [[102, 103, 257, 256], [256] * 4]]


def test_a_share_is_of_evenly_spread_documents(make: Callable[..., Data]) -> None:
    texts = ["ab" * (number + 1) for number in range(10)]
    store = make(texts).store("train")
    numbers = {share: set(_documents(ChunkTable(store, 4, share))) for share in (0.001, 0.2, 0.3, 1.0)}
    assert numbers == {0.001: {0}, 0.2: {0, 5}, 0.3: {0, 3, 6}, 1.0: set(range(10))}
    table = ChunkTable(store, 4, 0.2)
    assert table.firsts.tolist() == [0, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4]
    assert table.tokens(np.array([1]), padding=256)[0].tolist() == [[97, 98] * 4]


def _documents(table: ChunkTable) -> list[int]:
    return table.documents(np.arange(len(table))).tolist()


def test_a_text_that_is_cut_inside_a_character_is_still_a_text(make: Callable[..., Data]) -> None:
    data = make(["aéb"])
    assert ChunkTexts(ChunkTable(data.store("train"), 2), data.tokenizer)[:] == ["a�", "�b"]
