"""What a few paired seeds allow to be said: t-intervals, paired differences, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

#: Share of intervals that cover the true value, and one minus the level at which a verdict is given.
CONFIDENCE = 0.95


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), 0 <= x <= 1, by its continued fraction."""
    if not 0.0 <= x <= 1.0:
        raise ValueError(f"I_x(a, b) is defined for x from 0 to 1, not for {x}")
    if x in (0.0, 1.0):
        return x
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of I_x(a, b), evaluated by Lentz's method."""
    tiny = 1e-300
    c = 1.0
    d = 1.0 / (1.0 - (a + b) * x / (a + 1.0) or tiny)
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d or tiny)
            c = 1.0 + term / c or tiny
            value *= d * c
        if abs(d * c - 1.0) < 1e-16:
            break
    return value


def t_tail(t: float, freedom: float) -> float:
    """P(T > t) for Student's t with `freedom` degrees of freedom, t >= 0."""
    if math.isinf(t):
        return 0.0
    return 0.5 * incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)


def t_quantile(p: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees of freedom stays below with probability `p`, 0.5 <= p < 1."""
    if not (0.5 <= p < 1.0 and freedom > 0):
        raise ValueError(f"the quantile needs 0.5 <= p < 1 and freedom > 0, got p {p} and freedom {freedom}")
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1.0 - p:
        low, high = high, high * 2.0
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return middle
        if t_tail(middle, freedom) > 1.0 - p:
            low = middle
        else:
            high = middle


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. `half` is half the width of its interval, None where one seed allows none."""

    mean: float
    half: float | None
    deviation: float | None
    """Standard deviation of one seed, n - 1 in the denominator."""
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper end, or None."""
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)


def estimate(values: Items[float], confidence: float = CONFIDENCE) -> Estimate:
    """Mean of `values` with its t-interval; one value has no interval. Raises `ValueError` on none."""
    n = len(values)
    if n == 0:
        raise ValueError("a mean needs at least one value, got none")
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(0.5 + confidence / 2.0, n - 1) * deviation / math.sqrt(n)
    return Estimate(mean, half, deviation, n)


@dataclass(frozen=True)
class Difference(Estimate):
    """Arm minus baseline over the seeds that both have; `p` is the two-sided p-value of the paired t-test."""

    p: float | None
    seeds: tuple[int, ...]


def paired(
    arm: Mapping[int, float], baseline: Mapping[int, float], confidence: float = CONFIDENCE
) -> Difference | None:
    """The paired difference of two arms, values by seed; None where no seed is shared."""
    seeds = tuple(sorted(arm.keys() & baseline.keys()))
    if not seeds:
        return None
    e = estimate([arm[seed] - baseline[seed] for seed in seeds], confidence)
    return Difference(e.mean, e.half, e.deviation, e.n, _p_value(e), seeds)


def _p_value(e: Estimate) -> float | None:
    if e.deviation is None:
        return None
    if e.deviation == 0.0:
        return 1.0 if e.mean == 0.0 else 0.0
    return 2.0 * t_tail(abs(e.mean) * math.sqrt(e.n) / e.deviation, e.n - 1)


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm's step-down correction: p-values that may each be held against one level, whatever their number.

    S. Holm (1979), A simple sequentially rejective multiple test procedure. None stays None and is not counted.
    """
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    highest = 0.0
    for rank, (p, name) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[name] = highest
    return adjusted
