"""Dialogues packed into rows: as few rows as can be found quickly, and no dialogue cut."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from bakeoff.errors import UserError


class Packed(NamedTuple):
    """Which dialogues share a row.

    Attributes
    ----------
    order : (n,) int64, each dialogue's number once, row by row; ascending in a row.
    ends : (rows,) int64, ascending; row i holds `order[ends[i - 1] : ends[i]]`. Rows come in the order of their first.
    """

    order: np.ndarray
    ends: np.ndarray

    def fill(self, lengths: np.ndarray, capacity: int) -> float:
        """The share of the rows' places that hold a token."""
        return float(lengths.sum() / (len(self.ends) * capacity)) if len(self.ends) else 1.0


def pack(lengths: np.ndarray, capacity: int) -> Packed:
    """Dialogues of `lengths` (n,) tokens, at least one each, put into rows of `capacity` tokens: best fit, longest
    first (Ding et al. 2024, "Fewer Truncations Improve Language Modeling", arXiv:2404.10830).

    Each, the longest first and of equal ones the earlier first, goes to the row with the least room that holds it, of
    equal ones to that which was begun first; where none does, it begins a row. O(n log n). `UserError` where one is
    longer than a row.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    _check(lengths, capacity)
    descending = np.argsort(-lengths, kind="stable")
    rows = np.empty(len(lengths), dtype=np.int64)
    rooms: list[int] = []  # ascending: how much room some row has left
    having: dict[int, list[int]] = {}  # room -> heap of the rows that have so much
    begun = 0
    for number, length in zip(descending.tolist(), lengths[descending].tolist(), strict=True):
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row, room = begun, capacity
            begun += 1
        else:
            room = rooms[place]
            row = heappop(having[room])
            if not having[room]:
                del having[room], rooms[place]
        rows[number] = row
        if left := room - length:
            if left not in having:
                having[left] = []
                insort(rooms, left)
            heappush(having[left], row)
    return _listed(rows, begun)


def naive_pack(lengths: np.ndarray, capacity: int) -> Packed:
    """`pack`, by the words of its docstring."""
    _check(lengths, capacity)
    rows = np.empty(len(lengths), dtype=np.int64)
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        fitting = [row for row in range(len(room)) if room[row] >= lengths[number]]
        if not fitting:
            room.append(capacity)
        row = min(fitting, key=lambda row: (room[row], row)) if fitting else len(room) - 1
        room[row] -= int(lengths[number])
        rows[number] = row
    return _listed(rows, len(room))


def _check(lengths: np.ndarray, capacity: int) -> None:
    assert not len(lengths) or lengths.min() > 0
    if len(lengths) and lengths.max() > capacity:
        longest = int(lengths.argmax())
        raise UserError(
            f"dialogue {longest} takes {lengths[longest]} tokens, but a row holds {capacity}; a dialogue is never cut: "
            "set data.length higher, or leave such dialogues out"
        )


def _listed(rows: np.ndarray, count: int) -> Packed:
    """`rows` (n,), in which of `count` rows each dialogue stands, made into lists of what each row holds."""
    _, first = np.unique(rows, return_index=True)
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(count)
    rows = rank[rows]
    return Packed(np.argsort(rows, kind="stable"), np.cumsum(np.bincount(rows, minlength=count)))
