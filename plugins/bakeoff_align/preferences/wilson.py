"""The interval of a share."""

from __future__ import annotations

import math

#: Standard deviations of the normal law between which 95 % of it lie.
Z = 1.959963984540054


def wilson(right: float, n: int) -> tuple[float, float]:
    """The ends of the 95 % score interval of the share `right` of `n` trials (Wilson, 1927)."""
    middle = (right + Z * Z / 2) / (n + Z * Z)
    half = Z / (n + Z * Z) * math.sqrt(right * (n - right) / n + Z * Z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)
