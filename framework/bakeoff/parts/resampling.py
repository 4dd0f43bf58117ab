"""How far a mean over a text hangs on which of its pieces were read."""

from __future__ import annotations

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
    value, n, draws = float(above.sum() / below.sum()), len(above), np.random.default_rng(seed)
    if n == 1:
        return Ratio(value, value, value)
    found = []
    for _ in range(SAMPLES // AT_ONCE):
        times = draws.multinomial(n, np.full(n, 1 / n), AT_ONCE)
        found.append((times @ above) / np.maximum(times @ below, np.finfo(float).tiny))
    rest = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(found), [rest, 1 - rest])
    return Ratio(value, float(low), float(high))
