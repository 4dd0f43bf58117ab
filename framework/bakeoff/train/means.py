"""What an objective tells of itself beside its loss: means over the rows that it was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from bakeoff.train.table import Cell, Table


class Means(Table):
    """`means.csv`: a number a row, by step and name; those of the validation split are called `validation.NAME`."""

    columns: ClassVar = ("step", "name", "value")
    texts: ClassVar = ("name",)


class Sums:
    """Sums and weights by name, from one row of the curve to the next."""

    def __init__(self, held: Mapping[str, list[float]] | None = None):
        self.held = {name: list(pair) for name, pair in (held or {}).items()}

    def add(self, pairs: Mapping[str, tuple[float, float]]) -> None:
        """Those of one optimizer step."""
        for name, (total, weight) in pairs.items():
            sums = self.held.setdefault(name, [0.0, 0.0])
            sums[0] += total
            sums[1] += weight

    def means(self) -> dict[str, float]:
        """What has a weight, divided by it."""
        return {name: total / weight for name, (total, weight) in self.held.items() if weight}


def rows_of(means: Mapping[str, float], step: int) -> Iterator[dict[str, Cell]]:
    """Rows of `means.csv`."""
    for name, value in means.items():
        yield {"step": step, "name": name, "value": value}
