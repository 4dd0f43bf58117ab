"""Chunks of held-out text as they are shown: what was found for them, and what it did to the loss of each token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bakeoff.data.retrieval.lookup import Lookup
from bakeoff.evaluate.tasks.chunk_losses import Chunked, Costs
from bakeoff.evaluate.tasks.common_runs import Run, common_run
from bakeoff.interfaces.retriever import Found


class Neighbour(NamedTuple):
    """A chunk of the database, its `tokens` and those that follow it; `run` is what it shares with the text."""

    document: int
    score: float
    tokens: list[int]
    run: Run


class Passage(NamedTuple):
    """A chunk, `tokens`, after the one `before` it, whose neighbours the model sees as it predicts the chunk.

    Attributes
    ----------
    found, without : bits that each token costs with and without neighbours.
    overlap : of the chunk, with its own neighbours.
    """

    what: str
    before: list[int]
    tokens: list[int]
    found: list[float]
    without: list[float]
    overlap: float
    neighbours: list[Neighbour]

    @property
    def saved(self) -> list[float]:
        """Bits, of each token."""
        return [without - found for without, found in zip(self.without, self.found, strict=True)]


def passages(
    chunked: Chunked, lookup: Lookup, found: Found, costs: Costs, without: Costs, overlap: np.ndarray
) -> list[Passage]:
    """The chunk with the largest gain, one with a median gain, and that with the largest loss, where one loses."""
    saved = chunked.per_chunk(without.bits - costs.bits)
    seeing = np.flatnonzero(chunked.before >= 0)
    order = seeing[np.argsort(saved[seeing], kind="stable")]
    if not len(order):
        return []
    chosen = {"The largest gain": int(order[-1]), "A median gain": int(order[len(order) // 2])}
    if saved[order[0]] < 0:
        chosen["The largest loss"] = int(order[0])
    return [
        Passage(
            what,
            chunked.ids[chunked.before[number]].tolist(),
            chunked.ids[number].tolist(),
            costs.bits[chunked.token_places(number)].tolist(),
            without.bits[chunked.token_places(number)].tolist(),
            float(overlap[number]),
            _neighbours(lookup, found, int(chunked.before[number]), chunked.ids[number].tolist()),
        )
        for what, number in chosen.items()
    ]


def _neighbours(lookup: Lookup, found: Found, number: int, text: list[int]) -> list[Neighbour]:
    """Those of a chunk, with the run that each has in common with a text."""
    shown = found.numbers[number, : lookup.k]
    tokens, real = lookup.chunk_tokens(shown)
    documents = lookup.documents(np.maximum(shown, 0))
    neighbours = []
    for i in np.flatnonzero(shown >= 0):
        ids = tokens[i][real[i]].tolist()
        neighbours.append(Neighbour(int(documents[i]), float(found.scores[number, i]), ids, common_run(text, ids)))
    return neighbours
