"""Tables in Markdown, and how candidates compare."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def table(*columns: str) -> None:
    """The head of a table; the first column is words."""
    print(f"\n| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")


def row(*values: Any) -> None:
    """A line of it."""
    print(f"| {' | '.join(str(value) for value in values)} |", flush=True)


def ratio(other: Sequence[float], own: Sequence[float]) -> float:
    """How many times as long the other takes, in the median round, of seconds by round."""
    return statistics.median(a / b for a, b in zip(other, own, strict=True))
