"""Retriever `shuffled`: a control arm."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff.interfaces import Found, Index, Retriever, Texts
from bakeoff.parts.files import seal

from bakeoff_retro.search.drawing import drawn
from bakeoff_retro.search.finding import check_asked, nothing


class Shuffled(Retriever):
    """A control arm: what `retriever` finds for another chunk of the database, drawn by a hash of seed and query.

    Each text's neighbours are as like each other as ever, and not like the text.

    Parameters
    ----------
    retriever : whose index is searched.
    """

    control = True

    def __init__(self, *, retriever: Retriever, seed: int = 0):
        self.retriever, self.seed = retriever, seed

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Around an exact search."""
        return [{"retriever": {"use": "flat", "embedder": {"use": "static"}}}]

    def fingerprint(self) -> str:
        return seal(self.described())

    def described(self) -> dict[str, str]:
        inner = self.retriever.described()
        return {**inner, "retriever": seal(["shuffled", self.seed, inner["retriever"]])}

    def build(self, texts: Texts, folder: Path, progress: Callable[[int], None]) -> None:
        self.retriever.build(texts, folder, progress)

    def load(self, folder: Path, texts: Texts) -> Index:
        return _Elsewhere(self.seed, self.retriever.load(folder, texts), texts)


class _Elsewhere(Index):
    def __init__(self, seed: int, index: Index, texts: Texts):
        self.seed, self.index, self.texts = seed, index, texts

    def neighbours(self, queries: Items[str], k: int, exclude: np.ndarray | None = None) -> Found:
        return self._of_others(self.index.neighbours, queries, k, exclude)

    def exact(self, queries: Items[str], k: int, exclude: np.ndarray | None = None) -> Found:
        return self._of_others(self.index.exact, queries, k, exclude)

    def _of_others(
        self, search: Callable[..., Found], queries: Items[str], k: int, exclude: np.ndarray | None
    ) -> Found:
        exclude = check_asked(len(queries), k, exclude)
        found = nothing(len(queries), k)
        others = [drawn(self.seed, query, 1, len(self.texts), exclude[row]) for row, query in enumerate(queries)]
        rows = [row for row, other in enumerate(others) if other]
        if rows:
            texts = [self.texts[number : number + 1][0] for row in rows for number in others[row]]
            found.numbers[rows], found.scores[rows] = search(texts, k, exclude[rows])
        return found
