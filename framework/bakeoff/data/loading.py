"""From sample numbers to batches: what PyTorch's DataLoader is given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from bakeoff.data.order import sample_order
from bakeoff.data.packing import Batch, Windows, rows
from bakeoff.data.store import TokenStore

#: Samples that are ordered at once, to spare the cost of many small calls.
AHEAD = 4096


class MicroBatches(Sampler[list[int]]):
    """Windows of one rank's micro-batches, without end.

    Optimizer step s takes samples s * G to (s + 1) * G - 1 of the sample order over all `windows`; of those,
    micro-batch (accumulation a, rank r) takes `micro` from number (a * ranks + r) * micro on. So a step sees the same
    samples however they are dealt out.
    """

    def __init__(
        self, *, windows: int, seed: int, global_batch: int, micro: int, first_step: int, ranks: int, rank: int
    ):
        self.windows, self.seed = windows, seed
        self.global_batch, self.micro, self.first_step = global_batch, micro, first_step
        self.ranks, self.rank = ranks, rank

    def __iter__(self) -> Iterator[list[int]]:
        at_once = -(-AHEAD // self.global_batch)
        for step in count(self.first_step, at_once):
            numbers = np.arange(step * self.global_batch, (step + at_once) * self.global_batch)
            chosen = sample_order(numbers, self.windows, self.seed)
            micro_batches = chosen.reshape(-1, self.ranks, self.micro)
            yield from micro_batches[:, self.rank].tolist()


class ValidationBatches(Sampler[list[int]]):
    """Windows of one rank's batches: each window once over all ranks, and equally many batches on each rank.

    A rank for which no window is left gets a batch of one row that is all padding (window number -1), since ranks that
    share a model must call it equally often.
    """

    def __init__(self, windows: np.ndarray, *, batch: int, ranks: int, rank: int):
        self.windows, self.batch, self.ranks, self.rank = windows, batch, ranks, rank

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(len(self)):
            start = (number * self.ranks + self.rank) * self.batch
            yield self.windows[start : start + self.batch].tolist() or [-1]

    def __len__(self) -> int:
        return -(-len(self.windows) // (self.batch * self.ranks))


class Rows(Dataset[Batch]):
    """Rows of a split by window number; a list of numbers gives a whole batch, -1 a row of nothing but padding.

    `always`: batches have document ids even where no row holds more than one document.
    """

    def __init__(self, store: TokenStore, windows: Windows, *, isolate: bool, padding: int, always: bool = False):
        self.store, self.windows, self.padding = store, windows, padding
        self.isolate, self.always = isolate, always

    def __getitem__(self, number: int) -> Batch:
        return self.__getitems__([number])

    def __getitems__(self, numbers: list[int]) -> Batch:
        places = np.asarray(numbers, dtype=np.int64)
        told = {"isolate": self.isolate, "always": self.always}
        return rows(self.store, self.starts(places), self.windows.wanted, padding=self.padding, **told)

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        """Where rows begin in the split; behind its end for those of nothing but padding."""
        return np.where(numbers < 0, self.windows.tokens, numbers * self.windows.length)


def as_it_is(batch: Any) -> Any:
    """Collation of what is a batch already."""
    return batch


def spread(count: int, wanted: int) -> np.ndarray:
    """`wanted` of the numbers 0 .. `count` - 1, evenly spread; all of them if there are no more."""
    return np.arange(count) if wanted >= count else np.arange(wanted) * count // wanted
