"""What the queries of a ring's rank see of the keys of each: steps of the ring, and rectangles of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from bakeoff.interfaces.past import Entries
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.interfaces.spans import Spans, bounds, owners
from bakeoff.parts.attention.functional import Visible
from bakeoff.parts.attention.masks import visible
from torch import Tensor

#: Queries at once, at least, where a window lets them see few keys.
QUERIES = 128


class Range(NamedTuple):
    """From `start` to before `stop`, and what is added to a place in the row to make it one among a rank's tokens."""

    start: int
    stop: int
    shift: int

    @property
    def own(self) -> slice:
        """Among the tokens of its rank."""
        return slice(self.start + self.shift, self.stop + self.shift)


class Rectangle(NamedTuple):
    """Queries of this rank by keys of the block at hand, places among the tokens of their ranks.

    Each query sees all of the keys, or with `causal` those up to its own, or what `mask` says, made when asked for.
    """

    queries: slice
    keys: slice
    causal: bool = False
    mask: Callable[[], Tensor] | None = None

    @property
    def plain(self) -> bool:
        """Every query sees every key."""
        return not self.causal and self.mask is None

    @property
    def seen(self) -> Visible:
        """For the functions of attention."""
        return Visible(None if self.mask is None else self.mask(), self.causal)


class Step(NamedTuple):
    """The block of the rank that stands `offset` before this one, and what of it is looked at; it may be nothing."""

    offset: int
    rectangles: list[Rectangle]


class Reach(NamedTuple):
    """Places before and after its own that a query can look at; None: all."""

    behind: int | None
    ahead: int | None


@dataclass(frozen=True)
class Steps(Need):
    """The `Step`s of a ring that shares out a sequence, in order; None where nothing is shared out.

    Which there are depends on the whole sequence alone, so that all ranks make the same; this rank's own block comes
    first.
    """

    window: int | None

    def derive(self, sequence: Sequence) -> list[Step] | None:
        """Looks at values of documents, padding and prefixes where there are any, once for all layers."""
        spans = sequence.spans
        if spans is None:
            return None
        reach = reach_of(spans.whole, self.window)
        steps = []
        for offset in offsets(spans.length, spans.ranks, spans.order, reach):
            source = (spans.rank - offset) % spans.ranks
            pairs = pairs_of(spans.length, spans.ranks, spans.order, reach, spans.rank, source)
            steps.append(Step(offset, joined(_rectangles(spans, pairs, reach, self.window))))
        return steps


def reach_of(whole: Sequence, window: int | None) -> Reach:
    """From window and visibility; a window counts real tokens, and reaches over any padding between them."""
    ahead = 0 if whole.visibility == "causal" else None
    if window is None or (whole.real is not None and _broken(whole.real)):
        return Reach(None, ahead)
    return Reach(window - 1, window - 1 if ahead is None else ahead)


@lru_cache(maxsize=64)
def offsets(length: int, ranks: int, order: str, reach: Reach) -> list[int]:
    """How far before its own rank, around the ring, the blocks stand that any rank looks at."""
    every = range(ranks)
    seen = {
        (rank - source) % ranks
        for rank in every
        for source in every
        if next(iter(pairs_of(length, ranks, order, reach, rank, source)), None)
    }
    return sorted({0} | seen)


def pairs_of(
    length: int, ranks: int, order: str, reach: Reach, rank: int, source: int
) -> Iterator[tuple[Range, Range]]:
    """Queries of a rank and keys of another that they can look at, as near as places tell."""
    for queries in _pieces(_ranges(length, ranks, order, rank), reach):
        for keys in _ranges(length, ranks, order, source):
            (a, b, here), (c, d, there) = queries, keys
            c = c if reach.behind is None else max(c, a - reach.behind)
            d = d if reach.ahead is None else min(d, b + reach.ahead)
            a = a if reach.ahead is None else max(a, c - reach.ahead)
            b = b if reach.behind is None else min(b, d + reach.behind)
            if a < b and c < d:
                yield Range(a, b, here), Range(c, d, there)


def _ranges(length: int, ranks: int, order: str, rank: int) -> list[Range]:
    found, held = [], 0
    for (start, stop), owner in zip(bounds(length, ranks, order), owners(ranks, order), strict=True):
        if owner == rank:
            found.append(Range(start, stop, held - start))
            held += stop - start
    return found


def _pieces(ranges: Iterable[Range], reach: Reach) -> Iterator[Range]:
    """As they are, or cut so that a window spares keys."""
    for start, stop, shift in ranges:
        width = stop - start if reach.behind is None else max(reach.behind + 1, QUERIES)
        for at in range(start, stop, width):
            yield Range(at, min(at + width, stop), shift)


def _broken(real: Tensor) -> bool:
    """Whether padding stands between the real tokens of a row."""
    runs = (real[:, 1:] & ~real[:, :-1]).sum(1) + real[:, 0]
    return bool((runs > 1).any())


def _rectangles(
    spans: Spans, pairs: Iterable[tuple[Range, Range]], reach: Reach, window: int | None
) -> list[Rectangle]:
    whole = spans.whole
    if whole.documents is None and whole.real is None and whole.prefix is None:
        return [_by_places(whole, queries, keys, reach, window) for queries, keys in pairs]
    return _by_values(whole, list(pairs), window)


def _by_places(whole: Sequence, queries: Range, keys: Range, reach: Reach, window: int | None) -> Rectangle:
    """Of rows without documents, padding and prefixes."""
    near = reach.behind is None or queries.stop - 1 - keys.start <= reach.behind
    rectangle = Rectangle(queries.own, keys.own)
    if near and (reach.ahead is None or keys.stop - 1 - queries.start <= reach.ahead):
        return rectangle
    if near and reach.ahead == 0 and queries == keys:
        return rectangle._replace(causal=True)
    return rectangle._replace(mask=_later(whole, queries, keys, window))


def _by_values(whole: Sequence, pairs: list[tuple[Range, Range]], window: int | None) -> list[Rectangle]:
    """Of any rows, by the masks themselves."""
    told = []
    for queries, keys in pairs:
        mask = mask_of(whole, queries, keys, window)
        lower = mask == torch.ones_like(mask[0, 0]).tril()
        told.append(torch.stack([mask.any(), mask.all(), lower.all()]))
    found = []
    for (queries, keys), (some, every, lower) in zip(pairs, torch.stack(told).tolist() if told else [], strict=True):
        causal = lower and not every and queries == keys
        make = None if every or causal else _later(whole, queries, keys, window)
        found += [Rectangle(queries.own, keys.own, causal, make)] if some else []
    return found


def _later(whole: Sequence, queries: Range, keys: Range, window: int | None) -> Callable[[], Tensor]:
    return lambda: mask_of(whole, queries, keys, window)


def mask_of(whole: Sequence, queries: Range, keys: Range, window: int | None) -> Tensor:
    """(B or 1, 1, queries, keys), True where a key is seen."""
    seen, looked_at = (_entries(whole, x) for x in (queries, keys))
    prefix = None if whole.prefix is None else whole.prefix[:, queries.start : queries.stop]
    return visible(seen, looked_at, window, whole.visibility, prefix)[:, None]


def _entries(whole: Sequence, places: Range) -> Entries:
    cut = (None if x is None else x[:, places.start : places.stop] for x in whole.entries())
    return Entries(*cut)  # type: ignore[arg-type]


def joined(rectangles: list[Rectangle]) -> list[Rectangle]:
    """The same in fewer: neighbours of which all is seen, and a triangle made of two and what lies between them."""
    along_queries = _merged(rectangles, lambda a, b: a.keys == b.keys and a.queries.stop == b.queries.start)
    found = _merged(along_queries, lambda a, b: a.queries == b.queries and a.keys.stop == b.keys.start)
    causal = [one for one in found if one.causal]
    if len(found) == 3 and len(causal) == 2:
        first, last = causal
        (between,) = (one for one in found if not one.causal)
        if between.plain and (between.queries, between.keys) == (last.queries, first.keys):
            return [Rectangle(*(slice(first.keys.start, last.keys.stop),) * 2, causal=True)]
    return found


def _merged(rectangles: list[Rectangle], adjoin: Callable[[Rectangle, Rectangle], bool]) -> list[Rectangle]:
    found: list[Rectangle] = []
    for one in rectangles:
        other = next((o for o in found if o.plain and one.plain and adjoin(o, one)), None)
        if other is None:
            found.append(one)
        else:
            queries = slice(other.queries.start, one.queries.stop)
            found[found.index(other)] = Rectangle(queries, slice(other.keys.start, one.keys.stop))
    return found
