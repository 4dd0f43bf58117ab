"""The learning curve of a run."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from bakeoff.train.table import Table

Row = dict[str, float | int | None]


class Curve(Table):
    """`curve.csv`: loss, speed and work; the last two columns are empty in rows at which nothing was validated."""

    columns: ClassVar = (
        "step", "tokens", "flops", "seconds", "loss", "lr", "grad_norm", "bits_per_byte", "nats_per_token",
    )  # fmt: skip

    def start(self) -> None:
        """Begin anew, with the names of the columns."""
        self._write([])


def read_curve(path: Path) -> list[Row]:
    """The rows of a curve file as numbers, empty cells as None; a last line that was cut short is left out."""
    return Curve(path).read()
