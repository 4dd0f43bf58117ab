"""Numbers of things that there must be some of."""

from __future__ import annotations


def check_counts(**counts: int) -> None:
    """Raise `ValueError` naming the first that is below 1."""
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
