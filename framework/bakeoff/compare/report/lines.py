"""Curves of all arms in one chart: means over seeds, with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from typing import Any

from bakeoff.compare.statistics import estimate
from bakeoff.compare.tried import Tried
from bakeoff.parts.curve_html import Line

#: Pairs of a value that was tried and a number, of one trial.
Series = Callable[[Mapping[str, Any]], Iterable[tuple[float, float]]]


def lines(task: Tried, names: Items[str], series: Series, *, further: int = 0, shares: bool = False) -> Iterator[Line]:
    """A line an arm: means over seeds at the values that all have, with their intervals.

    `names` : of all arms, whose order gives the colours. `further` : added to their numbers; such lines have no band.
    `shares` : the numbers lie from 0 to 1, where intervals are cut.
    """
    for name, drawn in task.drawn.items():
        seeds = [dict(series(one)) for one in drawn]
        shared = sorted(set.intersection(*(set(seed) for seed in seeds)))
        if shared:
            found = [estimate([seed[x] for seed in seeds]) for x in shared]
            band = [each.interval for each in found if each.interval] if not further else []
            band = [(max(low, 0.0), min(high, 1.0)) for low, high in band] if shares else band
            points = [(x, each.mean) for x, each in zip(shared, found, strict=True)]
            yield Line(name, points, names.index(name) + further, band=band)
