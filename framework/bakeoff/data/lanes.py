"""Lanes: rows that read the split on and on, so that each window begins where the row's last one ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from bakeoff.data.loading import Rows
from bakeoff.data.order import sample_order
from bakeoff.data.packing import Batch, Windows
from bakeoff.errors import UserError

#: Number of a window, and whether a lane begins with it.
Place = tuple[int, bool]


class LaneBatches(Sampler[list[Place]]):
    """Windows of one rank's micro-batches, without end; row r of every optimizer step is lane r.

    An epoch is `windows // lanes` steps. In epoch e, lane r reads so many windows from number o + r * steps on, around
    the end of the split, where o is drawn by (seed, e); those that are left over are others in each epoch. A lane
    begins anew with each epoch and at the beginning of the split. Lanes are dealt out as `MicroBatches` deals samples:
    micro-batch (accumulation a, rank r) has `micro` of them from number (a * ranks + r) * micro on.
    """

    def __init__(self, *, windows: int, seed: int, lanes: int, micro: int, first_step: int, ranks: int, rank: int):
        self.windows, self.seed, self.lanes = windows, seed, lanes
        self.micro, self.first_step, self.ranks, self.rank = micro, first_step, ranks, rank
        self.steps = windows // lanes

    def __iter__(self) -> Iterator[list[Place]]:
        for step in count(self.first_step):
            numbers, fresh = self.step(step)
            shape = (-1, self.ranks, self.micro)
            mine = numbers.reshape(shape)[:, self.rank], fresh.reshape(shape)[:, self.rank]
            for micro_batch in zip(*mine, strict=True):
                yield [(int(number), bool(begins)) for number, begins in zip(*micro_batch, strict=True)]

    def step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Number of each lane's window in an optimizer step, and whether the lane begins with it."""
        epoch, place = divmod(step, self.steps)
        first = sample_order(np.array([epoch * self.windows]), self.windows, self.seed)[0]
        numbers = (first + np.arange(self.lanes) * self.steps + place) % self.windows
        return numbers, (numbers == 0) | (place == 0)


class ValidationLanes(Sampler[list[Place]]):
    """About `wanted` of the split's `windows` in lanes that begin evenly spread over it; each window once at most.

    There are as many lanes as one has windows, but at most `most`, whatever the batch and the ranks, so that these do
    not change the figure. A batch holds the next window of `batch` lanes; lanes that have ended, and rows that are no
    lane, are padding (number -1). All batches of a lane follow each other on one rank.
    """

    def __init__(self, windows: int, wanted: int, *, most: int, batch: int, ranks: int, rank: int):
        wanted = min(wanted, windows)
        self.lanes = min(most, math.isqrt(wanted))
        self.steps = -(-wanted // self.lanes)
        borders = np.arange(self.lanes + 1) * windows // self.lanes
        self.starts, self.lengths = borders[:-1], np.minimum(np.diff(borders), self.steps)
        self.batch, self.ranks, self.rank = min(batch, -(-self.lanes // ranks)), ranks, rank

    def __iter__(self) -> Iterator[list[Place]]:
        for group in range(self.groups):
            first = (group * self.ranks + self.rank) * self.batch
            lanes = range(first, first + self.batch)
            for place in range(self.steps):
                yield [(self._window(lane, place), place == 0) for lane in lanes]

    def __len__(self) -> int:
        return self.groups * self.steps

    @property
    def groups(self) -> int:
        """How often each rank takes a batch of lanes from their beginnings to their ends."""
        return -(-self.lanes // (self.batch * self.ranks))

    def _window(self, lane: int, place: int) -> int:
        there = lane < self.lanes and place < self.lengths[lane]
        return int(self.starts[lane]) + place if there else -1


class LaneRows(Dataset[Batch]):
    """Rows by number, with `fresh` (B,) bool, True where a lane begins, or None in a batch where none does."""

    def __init__(self, rows: Rows):
        self.rows = rows

    def __getitem__(self, place: Place) -> Batch:
        return self.__getitems__([place])

    def __getitems__(self, places: list[Place]) -> Batch:
        numbers, fresh = zip(*places, strict=True)
        batch = self.rows.__getitems__(list(numbers))
        return {**batch, "fresh": torch.tensor(fresh) if any(fresh) else None}


def refuse_short(windows: Windows, lanes: int) -> None:
    """Raise `UserError` where so many lanes would have fewer than two of the train split's windows each."""
    each = windows.length
    if windows.whole < 2 * lanes:
        most = windows.whole // 2
        advice = f"or set data.batch_tokens to at most {most * each} " if most else ""
        raise UserError(
            f"trainer.stateful: the {lanes} rows of a step (data.batch_tokens {lanes * each} / data.length {each}) are "
            f"lanes of at least 2 rows each, {2 * lanes} in all, but the train split has {windows.whole}; give the "
            f"corpus more text {advice}or set trainer.stateful: false"
        )
