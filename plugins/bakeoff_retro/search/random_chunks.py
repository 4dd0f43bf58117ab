"""Retriever `random_chunks`: a control arm."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np
from bakeoff.interfaces import Found, Index, Retriever, Texts
from bakeoff.parts.files import seal

from bakeoff_retro.search.drawing import drawn
from bakeoff_retro.search.finding import check_asked, nothing


class RandomChunks(Retriever):
    """A control arm: any chunks, all different, drawn by a hash of seed and query; their scores are 0.

    What a model gains from them it does not gain from what they say.
    """

    control = True

    def __init__(self, *, seed: int = 0):
        self.seed = seed

    def fingerprint(self) -> str:
        return seal(["random_chunks", self.seed])

    def build(self, texts: Texts, folder: Path, progress: Callable[[int], None]) -> None:
        progress(len(texts))

    def load(self, folder: Path, texts: Texts) -> Index:
        return _Drawing(self.seed, len(texts))


class _Drawing(Index):
    def __init__(self, seed: int, total: int):
        self.seed, self.total = seed, total

    def neighbours(self, queries: Items[str], k: int, exclude: np.ndarray | None = None) -> Found:
        exclude = check_asked(len(queries), k, exclude)
        found = nothing(len(queries), k)
        for row, query in enumerate(queries):
            numbers = drawn(self.seed, query, k, self.total, exclude[row])
            found.numbers[row, : len(numbers)], found.scores[row, : len(numbers)] = numbers, 0
        return found
