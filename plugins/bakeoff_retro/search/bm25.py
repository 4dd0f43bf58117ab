"""Retriever `bm25`: chunks that share rare words with the query."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff.errors import UserError
from bakeoff.interfaces import Found, Index, Reference, Retriever, Texts
from bakeoff.parts.files import read_json, replacing, seal, sync_folder, write_whole

from bakeoff_retro.search.finding import check_asked, first_of, nothing
from bakeoff_retro.search.libraries import bm25s, required
from bakeoff_retro.search.sizes import begun, finish, opened

NAME = "retriever 'bm25'"
#: Texts that are read at once.
BATCH = 512
WORDS, SCORES, CHUNKS, STARTS = "words.json", "scores.npy", "chunks.npy", "starts.npy"
FILES = (WORDS, SCORES, CHUNKS, STARTS)

_WORD = re.compile(r"\w+")


class BM25(Retriever):
    """Sum over the query's words `w`, as often as they stand there, of

        ln(1 + (n - df(w) + 1/2) / (df(w) + 1/2)) tf / (tf + k1 (1 - b + b length / mean length))

    with n chunks of which df(w) hold the word, tf times this one. Words are runs of letters, digits and _, in lower
    case; a chunk that shares none is not found; of equal scores the lower number comes first. Exact. `build` holds the
    words' numbers in memory, and begins again after a kill. Needs the extra `retrieval`.

    Parameters
    ----------
    k1 : how little a word's repetition counts; 0: not at all.
    b : how much long chunks lose, from 0 to 1.
    """

    reference = Reference(
        "Robertson, S.; Zaragoza, H.",
        2009,
        "The Probabilistic Relevance Framework: BM25 and Beyond",
        "https://doi.org/10.1561/1500000019",
    )

    def __init__(self, *, k1: float = 1.5, b: float = 0.75):
        required("bm25s", NAME)
        if k1 < 0 or not 0 <= b <= 1:
            raise ValueError(f"k1 is {k1} and b is {b}; k1 must be at least 0, and b from 0 to 1")
        self.k1, self.b = k1, b

    def fingerprint(self) -> str:
        return seal(["bm25", self.k1, self.b])

    def build(self, texts: Texts, folder: Path, progress: Callable[[int], None]) -> None:
        """See `Retriever`: the words, and what each gives to which chunks."""
        library = bm25s(NAME)
        facts = {**self.described(), "count": len(texts)}
        if begun(folder, facts, FILES):
            progress(len(texts))
            return
        vocabulary: dict[str, int] = {}
        numbered: list[array[int]] = []
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            numbered += (array("i", [vocabulary.setdefault(w, len(vocabulary)) for w in _words(t)]) for t in batch)
            progress(len(batch))
        if not vocabulary:
            raise UserError(f"{NAME}: none of the {len(texts)} chunks of the database holds a word")
        scorer = library.BM25(k1=self.k1, b=self.b, method="lucene")
        found = scorer.build_index_from_ids(range(len(vocabulary)), numbered, show_progress=False)
        write_whole(folder / WORDS, json.dumps(list(vocabulary)).encode())
        for name, values in ((SCORES, found["data"]), (CHUNKS, found["indices"]), (STARTS, found["indptr"])):
            with replacing(folder / name, folder / f"{name}.tmp", values.nbytes) as file:
                np.save(file, values, allow_pickle=False)
        sync_folder(folder)
        finish(folder, facts, FILES)

    def load(self, folder: Path, texts: Texts) -> Index:
        opened(folder, len(texts), self.described())
        words = read_json(folder / WORDS)
        arrays = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (SCORES, CHUNKS, STARTS))
        return _WordIndex(len(texts), {word: number for number, word in enumerate(words)}, *arrays)


class _WordIndex(Index):
    """Word `w` gives `scores[starts[w] : starts[w + 1]]` to the chunks whose numbers stand there."""

    def __init__(self, count: int, words: dict[str, int], scores: Any, chunks: Any, starts: Any):
        self.count, self.words, self.scores, self.chunks, self.starts = count, words, scores, chunks, starts

    def neighbours(self, queries: Items[str], k: int, exclude: np.ndarray | None = None) -> Found:
        exclude = check_asked(len(queries), k, exclude)
        found = nothing(len(queries), k)
        for row, query in enumerate(queries):
            scores = self._scores(query)
            scores[max(0, exclude[row, 0]) : max(0, exclude[row, 1])] = 0
            numbers = np.flatnonzero(scores > 0)
            if len(numbers) > k:
                least = np.partition(scores[numbers], -k)[-k]
                numbers = numbers[scores[numbers] >= least]
            found.numbers[row], found.scores[row] = (x[0] for x in first_of(numbers[None], scores[numbers][None], k))
        return found

    def _scores(self, query: str) -> np.ndarray:
        scores = np.zeros(self.count, np.float32)
        for word, times in Counter(_words(query)).items():
            number = self.words.get(word)
            if number is not None:
                place = slice(self.starts[number], self.starts[number + 1])
                scores[self.chunks[place]] += times * self.scores[place]
        return scores


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
