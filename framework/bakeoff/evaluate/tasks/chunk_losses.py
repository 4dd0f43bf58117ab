"""What the tokens of held-out rows cost, chunk by chunk, when the model is shown one thing or another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from bakeoff.data.loading import spread
from bakeoff.data.packing import Batch, Windows, rows
from bakeoff.data.retrieval.batches import laid_out
from bakeoff.data.retrieval.grid import Grid, grid
from bakeoff.data.retrieval.lookup import Lookup
from bakeoff.errors import UserError
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.precision import autocast
from bakeoff.parts.modes import evaluating

#: Intervals are over documents where at least so many were read, else over rows.
FEWEST = 20


class Shown(NamedTuple):
    """For each of n chunks k neighbours by number, (n, k), of the database of `lookup`."""

    lookup: Lookup
    numbers: np.ndarray


class Pieces(NamedTuple):
    """What an interval is over: `kind` of pieces, how many (`n`), and which one each place is of, (N,) long."""

    kind: str
    n: int
    of: np.ndarray

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(N,) -> (n,)."""
        return np.bincount(self.of, values, minlength=self.n)


class Costs(NamedTuple):
    """Of all N places of the rows, in order, 0 for what is no target: `bits` that the token there cost, and `size`, the
    bytes that it stands for; (N,) double each."""

    bits: np.ndarray
    size: np.ndarray


def bits_per_byte(costs: Costs) -> float:
    """Of all targets together."""
    return float(costs.bits.sum() / costs.size.sum())


class Chunked:
    """Rows of the validation split, and the whole chunks of what the model reads of them.

    Attributes
    ----------
    grid : where the chunks stand, numbered in order from 0. ids : (n, m) long, their tokens.
    before : (n,) long, number of the chunk right before it in its document and row, -1 where there is none.
    chunk : (N,) long, of the token at each place the chunk that it is in, -1 for none.
    pieces : the documents that were read, or the rows.
    """

    def __init__(self, measured: Measured, tokens: int | None, size: int):
        data, T = measured.data, measured.length
        store = data.store("validation")
        windows = Windows(len(store.tokens), T, T + 1)
        if not windows.all:
            raise UserError(f"retrieval: the validation split holds {windows.tokens} tokens, which no row begins with")
        wanted = windows.all if tokens is None else -(-tokens // T)
        self.measured, self.size = measured, size
        self.starts = spread(windows.all, wanted) * T
        self.grid: Grid = grid(store, self.starts, T, size, isolate=data.isolate_documents)
        self.ids = store.tokens[self.grid.starts[:, None] + np.arange(size)].astype(np.int64)
        self.before = self._before()
        inside = self.grid.rows[:, None] * (T + 1) + self.grid.places[:, None] + np.arange(size)
        own = np.full(len(self.starts) * (T + 1), -1)
        own[inside] = np.arange(len(inside))[:, None]
        self.chunk = own.reshape(-1, T + 1)[:, 1:].flatten()
        self.pieces = self._pieces()

    def __len__(self) -> int:
        """How many chunks there are."""
        return len(self.ids)

    @property
    def batches(self) -> int:
        """How many `costs` reads, and tells of."""
        return -(-len(self.starts) // self.measured.batch)

    def costs(self, shown: Shown | None, told: Callable[[], None] = lambda: None) -> Costs:
        """Of the rows, when the model is shown that; None: no neighbours."""
        measured, bits, sizes = self.measured, [], []
        table = torch.as_tensor(measured.data.bytes_per_token).double()
        with evaluating(measured.model), evaluating(measured.objective), torch.no_grad():
            for batch in self._batches(shown):
                there = {name: None if value is None else value.to(measured.device) for name, value in batch.items()}
                with autocast(measured.recipe, measured.device):
                    found = measured.objective.token_losses(measured.model, there)
                real = (found.weights != 0).cpu()
                bits.append((found.nats.double().cpu() / math.log(2)).where(real, 0.0).flatten().numpy())
                sizes.append(table[found.targets.cpu()].where(real, 0.0).flatten().numpy())
                told()
        return Costs(np.concatenate(bits), np.concatenate(sizes))

    def per_chunk(self, values: np.ndarray) -> np.ndarray:
        """(N,) -> (n,), sums over the targets in each chunk."""
        inside = self.chunk >= 0
        return np.bincount(self.chunk[inside], values[inside], minlength=len(self))

    def token_places(self, number: int) -> np.ndarray:
        """(m,) where the tokens of a chunk stand among all places; the chunk does not begin its row."""
        first = self.grid.rows[number] * self.measured.length + self.grid.places[number] - 1
        return first + np.arange(self.size)

    def _pieces(self) -> Pieces:
        T, store = self.measured.length, self.measured.data.store("validation")
        places = np.minimum(self.starts[:, None] + np.arange(1, T + 1), len(store.tokens) - 1)
        documents, of = np.unique(np.searchsorted(store.ends, places, side="right"), return_inverse=True)
        if len(documents) >= FEWEST:
            return Pieces("documents", len(documents), of.flatten())
        return Pieces("rows", len(self.starts), np.repeat(np.arange(len(self.starts)), T))

    def _before(self) -> np.ndarray:
        """Chunks are in order, so that the one before stands right before where one does."""
        g, number = self.grid, np.arange(len(self))
        follows = (np.diff(g.rows) == 0) & (np.diff(g.places) == self.size) & (np.diff(g.documents[:, 0]) == 0)
        if not self.measured.data.isolate_documents:
            follows = np.diff(g.rows) == 0
        return np.where(np.concatenate([[False], follows])[: len(number)], number - 1, -1)

    def _batches(self, shown: Shown | None) -> Iterator[Batch]:
        """The rows in batches, with the neighbours of their chunks."""
        measured, n = self.measured, self.measured.batch
        data = measured.data
        isolate, padding = data.isolate_documents, data.tokenizer.padding
        read = partial(rows, data.store("validation"), isolate=isolate, padding=padding)
        for first in range(0, len(self.starts), n):
            batch = read(self.starts[first : first + n], measured.length + 1)
            held = slice(*np.searchsorted(self.grid.rows, [first, first + n]))
            if shown is not None:
                here = Grid(*(each[held] for each in self.grid))
                here = here._replace(rows=here.rows - first)
                batch |= laid_out(shown.lookup, here, shown.numbers[held], batch["tokens"].shape[0])  # type: ignore[union-attr]
            yield batch
