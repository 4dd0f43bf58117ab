"""Windows over one split: the documents of a split stand one after another, and rows are cut out of that stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bakeoff.data.store import TokenStore

Batch = dict[str, torch.Tensor | None]


@dataclass(frozen=True)
class Windows:
    """Rows of `wanted` tokens, one every `length` tokens, so that a token is a target once.

    A row overlaps the next by `wanted` - `length` tokens: those that the objective only looks ahead at.
    """

    tokens: int
    length: int
    wanted: int

    @property
    def whole(self) -> int:
        """How many rows are full: what training draws from."""
        return max(0, (self.tokens - self.wanted) // self.length + 1)

    @property
    def all(self) -> int:
        """How many rows there are with the last, partial one: what validation goes through."""
        overlap = self.wanted - self.length
        return max(0, -(-(self.tokens - overlap) // self.length))

    @property
    def dropped(self) -> int:
        """How many tokens at the end of the split stand in no full row."""
        return self.tokens - (self.whole * self.length + self.wanted - self.length) if self.whole else self.tokens


def rows(
    store: TokenStore, starts: np.ndarray, wanted: int, *, isolate: bool, padding: int, always: bool = False
) -> Batch:
    """The rows of `wanted` tokens that begin at `starts`, as a batch of B rows and L tokens.

    `tokens` (B, L) long; `documents` (B, L) long, number of each token's document in the split, or None where no row
    holds more than one (unless `always`) or `isolate` is false; `real` (B, L) bool, False behind the end of the split,
    or None. A start at or behind the end gives a row that is all padding.
    """
    tokens = np.full((len(starts), wanted), padding, dtype=np.int64)
    lengths = np.clip(len(store.tokens) - starts, 0, wanted)
    for row, start, length in zip(tokens, starts, lengths, strict=True):
        row[:length] = store.tokens[start : start + length]
    real = None
    if (lengths < wanted).any():
        real = torch.from_numpy(np.arange(wanted) < lengths[:, None])
    return {
        "tokens": torch.from_numpy(tokens),
        "documents": _documents(store, starts, lengths, wanted, always) if isolate else None,
        "real": real,
    }


def _documents(
    store: TokenStore, starts: np.ndarray, lengths: np.ndarray, wanted: int, always: bool
) -> torch.Tensor | None:
    last_tokens = starts + np.maximum(lengths, 1) - 1
    first = np.searchsorted(store.ends, starts, side="right")
    last = np.searchsorted(store.ends, last_tokens, side="right")
    if not always and (first == last).all():
        return None
    documents = np.repeat(first[:, None], wanted, axis=1)
    for number in np.flatnonzero(first != last):
        ends = store.ends[first[number] : last[number]]
        places = np.minimum(starts[number] + np.arange(wanted), last_tokens[number])
        documents[number] += np.searchsorted(ends, places, side="right")
    return torch.from_numpy(documents)
