"""The whole chunks of rows: those that something is looked up for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bakeoff.data.store import TokenStore


class Grid(NamedTuple):
    """n whole chunks of some rows, row by row and in order.

    `rows` (n,) which row of those asked for; `slots` (n,) which chunk of that row; `places` (n,) where it begins in
    the row, in tokens; `starts` (n,) where in the split; `documents` (n, 2) the first and the last document of which
    nothing may be found for it: those that it touches, and, where documents are not told apart, those behind it in the
    row, whose tokens see what is found.
    """

    rows: np.ndarray
    slots: np.ndarray
    places: np.ndarray
    starts: np.ndarray
    documents: np.ndarray


def grid(store: TokenStore, starts: np.ndarray, length: int, chunk: int, *, isolate: bool) -> Grid:
    """The whole chunks of the rows of `length` tokens that begin at `starts`, or of what the split has of them.

    Each document's tokens in a row are cut from the first on; where `isolate` is false, the row is cut as one.
    """
    stops = np.minimum(starts + length, len(store.tokens))
    if isolate:
        rows, begins, lengths = _segments(store, starts, stops)
    else:
        rows, begins, lengths = np.arange(len(starts)), starts, np.maximum(stops - starts, 0)
    segments, within = ragged(lengths // chunk)
    at, row = begins[segments] + within * chunk, rows[segments]
    counts = np.bincount(row, minlength=len(starts))
    slots = ragged(counts)[1]
    until = at + chunk - 1 if isolate else np.minimum(stops, len(store.tokens) - 1)[row]  # the row's last target
    documents = np.stack([np.searchsorted(store.ends, edge, side="right") for edge in (at, until)], axis=1)
    return Grid(row, slots, at - starts[row], at, documents)


def ragged(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For lists of so many items each: the list that each item stands in, and its place there."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]


def _segments(store: TokenStore, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, beginning and length of each document's part of each row."""
    first = np.searchsorted(store.ends, starts, side="right")
    last = np.searchsorted(store.ends, stops - 1, side="right")
    rows, within = ragged(np.where(stops > starts, last - first + 1, 0))
    documents = first[rows] + within
    begins = np.maximum(starts[rows], np.where(documents > 0, store.ends[documents - 1], 0))
    return rows, begins, np.minimum(stops[rows], store.ends[documents]) - begins
