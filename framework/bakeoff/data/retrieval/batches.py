"""Neighbours in batches."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset

from bakeoff.data.loading import Rows
from bakeoff.data.packing import Batch
from bakeoff.data.retrieval.ahead import Ahead
from bakeoff.data.retrieval.grid import Grid, grid
from bakeoff.data.retrieval.lookup import Lookup
from bakeoff.interfaces.neighbours import BATCHED


class NeighbourRows(Dataset[Batch]):
    """Rows by number, with the neighbours of their whole chunks: what `BATCHED` names.

    `ahead` holds what was found ahead of time; None: each batch is searched for when it is drawn.
    """

    def __init__(self, rows: Rows, lookup: Lookup, ahead: Ahead | None):
        self.rows, self.lookup, self.ahead = rows, lookup, ahead

    def __getitem__(self, number: int) -> Batch:
        return self.__getitems__([number])

    def __getitems__(self, numbers: list[int]) -> Batch:
        rows, store = self.rows, self.rows.store
        places = np.asarray(numbers, dtype=np.int64)
        starts, length = rows.starts(places), rows.windows.length
        chunks = grid(store, starts, length, self.lookup.chunk, isolate=rows.isolate)
        found = self.ahead.of(places) if self.ahead is not None else self.lookup.found(store, chunks).numbers
        return {**rows.__getitems__(numbers), **laid_out(self.lookup, chunks, found, len(numbers))}


def laid_out(lookup: Lookup, chunks: Grid, found: np.ndarray, rows: int) -> Batch:
    """The neighbours of `rows` rows by the names of a batch; `found` (n, k) are numbers, of each of their chunks."""
    C, k = int(chunks.slots.max(initial=-1)) + 1, found.shape[1]
    numbers = np.full((rows, C, k), -1, dtype=np.int64)
    numbers[chunks.rows, chunks.slots] = found
    last = np.full((rows, C), -1, dtype=np.int64)
    last[chunks.rows, chunks.slots] = chunks.places + lookup.chunk - 1
    return dict(zip(BATCHED, (*lookup.chunk_tokens(numbers), torch.from_numpy(last)), strict=True))
