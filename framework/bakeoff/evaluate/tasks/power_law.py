"""A power law with a floor, fitted to a curve of losses."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from typing import NamedTuple

#: Exponents that are tried, and how often the best two neighbours are looked between.
STEEPEST, FLATTEST, TRIED, REFINED = 4.0, 0.02, 60, 4


class PowerLaw(NamedTuple):
    """`floor + scale t^-exponent`, and how far the points lie from it: the root of their mean squared distance."""

    floor: float
    scale: float
    exponent: float
    error: float

    def at(self, t: float) -> float:
        return self.floor + self.scale * t**-self.exponent


def fit(t: Items[float], values: Items[float]) -> PowerLaw:
    """Least squares over exponents from 0.02 to 4, floor and scale at least 0; each point counts the same.

    Where no falling curve is nearer than a flat one, scale and exponent are 0. Takes at least one point.
    """
    low, high = math.log(FLATTEST), math.log(STEEPEST)
    best = _flat(values)
    for _ in range(REFINED):
        step = (high - low) / TRIED
        found = min((_linear(t, values, math.exp(low + i * step)) for i in range(TRIED + 1)), key=_error)
        if found.error < best.error:
            best = found
        middle = math.log(found.exponent or FLATTEST)
        low, high = (
            max(math.log(FLATTEST), middle - step),
            min(math.log(STEEPEST), middle + step),
        )
    return best


def _linear(t: Items[float], values: Items[float], exponent: float) -> PowerLaw:
    """The best floor and scale for one exponent."""
    x, n = [each**-exponent for each in t], len(t)
    mean_x, mean = math.fsum(x) / n, math.fsum(values) / n
    spread = math.fsum((each - mean_x) ** 2 for each in x)
    covariance = math.fsum((a - mean_x) * (b - mean) for a, b in zip(x, values, strict=True))
    scale = covariance / spread if spread > 0 else 0.0
    if scale <= 0:
        return _flat(values)
    floor = mean - scale * mean_x
    if floor < 0:
        floor = 0.0
        scale = math.fsum(a * b for a, b in zip(x, values, strict=True)) / math.fsum(a * a for a in x)
    law = PowerLaw(floor, scale, exponent, 0.0)
    return law._replace(error=_distance(law, t, values))


def _flat(values: Items[float]) -> PowerLaw:
    mean = math.fsum(values) / len(values)
    return PowerLaw(mean, 0.0, 0.0, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)))


def _distance(law: PowerLaw, t: Items[float], values: Items[float]) -> float:
    return math.sqrt(math.fsum((law.at(a) - b) ** 2 for a, b in zip(t, values, strict=True)) / len(t))


def _error(law: PowerLaw) -> float:
    return law.error
