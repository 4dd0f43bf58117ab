"""Which keys a block of queries can see, and how: what attention by blocks goes through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bakeoff.interfaces import Entries, Need, Sequence
from bakeoff.parts.attention.functional import Scoring, Visible
from bakeoff.parts.attention.masks import held_keys, rolls, visible
from torch import Tensor

from bakeoff_blockwise.online import attend_in_tiles

ALL, CAUSAL, MASKED = Visible(None), Visible(None, causal=True), None


class Tile(NamedTuple):
    """The keys from `start` to `stop`, and what the queries of a block see of them; None: what a mask says."""

    start: int
    stop: int
    seen: Visible | None


@dataclass(frozen=True)
class TilesOfKeys(Need):
    """`Tiles` over the keys that `VisibleKeys(window, rolling)` tells of."""

    window: int | None
    chunk: int
    rolling: bool = False

    def derive(self, sequence: Sequence) -> Tiles | None:
        """None where no rolling cache can be."""
        if self.rolling and not rolls(sequence):
            return None
        return Tiles(sequence, self)


class Tiles:
    """What the queries of a call see of their keys, block by block; a mask is made where it is used.

    Attributes
    ----------
    chunk : queries of a block.
    placed : a key's place among the keys tells how far before a query it is, so that what causality and the window
        hide is known without a mask.
    ordered : no key is before another that stands earlier; under causal visibility queries see none behind their own.
    """

    def __init__(self, sequence: Sequence, need: TilesOfKeys):
        past, T = sequence.past, sequence.length
        even = sequence.real is None and (past is None or not past.ragged)
        straight = not need.rolling or past is None or T == 1 or past.longest <= (need.window or 0)
        self.chunk, self.window = need.chunk, need.window
        self.visibility, self.prefix = sequence.visibility, sequence.prefix
        self.queries = Entries(sequence.index, sequence.positions, sequence.documents, sequence.real)
        self.past = past
        self.slots = held_keys(sequence, need.window, rolling=True) if need.rolling else None
        self.placed = even and straight
        self.ordered = even or need.rolling or past is None or not past.slots

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor | None]:
        """`attend` over what is visible, by blocks."""
        return attend_in_tiles(q, k, v, self, scoring)

    def blocks(self, queries: int) -> Iterator[slice]:
        """The queries, block by block."""
        for start in range(0, queries, self.chunk):
            yield slice(start, min(start + self.chunk, queries))

    def of(self, block: slice, S: int, most: int, whole: int | None = None) -> Iterator[tuple[slice, Visible]]:
        """Which of S keys a block sees, at most `most` at once; `whole`: so many where all is seen."""
        for start, stop, seen in self._tiles(block, S):
            width = whole if seen is ALL and whole is not None else most
            if seen is CAUSAL:
                yield slice(start, stop), seen
                continue
            for first in range(start, stop, width):
                keys = slice(first, min(first + width, stop))
                yield keys, Visible(self._mask(block, keys)) if seen is MASKED else seen

    def _tiles(self, block: slice, S: int) -> Iterator[Tile]:
        """Tiles that are not empty, in the order of the keys."""
        held = S - self.queries.index.shape[1]
        own, end = held + block.start, held + block.stop  # places of the queries themselves
        low, high = self._bounds(own, end, S)
        if not self.placed or self.visibility == "prefix" or self.queries.documents is not None:
            tiles = [Tile(low, high, MASKED)]
        elif self.visibility == "bidirectional":
            first, last = (low, high) if self.window is None else (end - self.window, own + self.window)
            first, last = min(max(first, low), high), max(min(last, high), low)
            tiles = [Tile(low, high, MASKED)] if first >= last else [
                Tile(low, first, MASKED), Tile(first, last, ALL), Tile(last, high, MASKED)
            ]  # fmt: skip
        else:
            tiles = self._causal(low, own, end)
        yield from (tile for tile in tiles if tile.start < tile.stop)

    def _bounds(self, own: int, end: int, S: int) -> tuple[int, int]:
        """No key before the first or from the second on is seen by any query of the block."""
        low, high = 0, S
        if self.placed and self.window is not None:
            low, high = max(low, own - self.window + 1), min(high, end - 1 + self.window)
        if self.ordered and self.visibility == "causal":
            high = min(high, end)
        return low, high

    def _causal(self, low: int, own: int, end: int) -> list[Tile]:
        """Keys that some queries see no more, those that all see, and the queries' own."""
        first = low if self.window is None else min(max(low, end - self.window), own)
        past = [Tile(low, first, MASKED), Tile(first, own, ALL)]
        if end - own == 1:
            return [Tile(low, end, ALL)]
        fits = self.window is None or end - own <= self.window
        return [*past, Tile(own, end, CAUSAL if fits else MASKED)]

    def _mask(self, block: slice, keys: slice) -> Tensor:
        """(B or 1, 1, queries, keys)."""
        prefix = None if self.prefix is None else self.prefix[:, block]
        held = self._keys()
        return visible(_at(self.queries, block), _at(held, keys), self.window, self.visibility, prefix)[:, None]

    def _keys(self) -> Entries:
        """All keys; those of a growing cache are put together anew each time, as chunks of a sequence share most."""
        if self.slots is not None:
            return self.slots
        return self.queries if self.past is None else self.past.with_new(self.queries)


def _at(entries: Entries, places: slice) -> Entries:
    return Entries(*(None if x is None else x[:, places] for x in entries))  # type: ignore[arg-type]
