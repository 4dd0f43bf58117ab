"""How far a mean over a text hangs on which of its pieces were read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

#: Samples that are drawn, and how many of them a block of draws holds.
SAMPLES, AT_ONCE = 2000, 100
#: Share of samples between the ends of an interval.
CONFIDENCE = 0.95


class Ratio(NamedTuple):
    """A sum over a sum, with the ends of its interval; both are the value itself where there is but one piece."""

    value: float
    low: float
    high: float


def ratio(above: np.ndarray, below: np.ndarray, *, seed: int) -> Ratio:
    """The sum of `above` (n,) over that of `below` (n,), n pieces, and its 95 % interval by the bootstrap.

    A sample is n of the pieces drawn with replacement; the interval lies between the 2.5 and 97.5 percentiles of what
    the samples give (Efron, 1979). For paired quantities, `above` is their difference in each piece.
    """
    value, n = float(above.sum() / below.sum()), len(above)
    if n == 1:
        return Ratio(value, value, value)
    found = [(times @ above) / np.maximum(times @ below, np.finfo(float).tiny) for times in _samples(n, seed)]
    low, high = _ends(np.concatenate(found))
    return Ratio(value, float(low), float(high))


def means(values: np.ndarray, *, seed: int) -> list[Ratio]:
    """The mean of each row of `values` (m, n), n pieces, and its interval: as `ratio` to ones, of the same samples."""
    n = values.shape[1]
    found = values if n == 1 else np.concatenate([times @ values.T / n for times in _samples(n, seed)]).T
    return [Ratio(float(row.mean()), *map(float, _ends(drawn))) for row, drawn in zip(values, found, strict=True)]


def _samples(n: int, seed: int) -> Iterator[np.ndarray]:
    """(AT_ONCE, n): how often each piece is drawn, block by block."""
    draws = np.random.default_rng(seed)
    for _ in range(SAMPLES // AT_ONCE):
        yield draws.multinomial(n, np.full(n, 1 / n), AT_ONCE)


def _ends(found: np.ndarray) -> np.ndarray:
    rest = (1 - CONFIDENCE) / 2
    return np.quantile(found, [rest, 1 - rest])
