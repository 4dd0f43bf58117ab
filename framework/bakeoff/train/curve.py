"""The learning curve of a run: one row of numbers a line, never lost and never repeated."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError
from bakeoff.parts.files import file_hash, write_whole, writing

#: Columns of `curve.csv`. The last two are empty in rows at which nothing was validated.
COLUMNS = ("step", "tokens", "flops", "seconds", "loss", "lr", "grad_norm", "bits_per_byte", "nats_per_token")

Row = dict[str, float | int | None]


class Curve:
    """`curve.csv`: rows are appended as they come, and cut back to a checkpoint's step when a run continues from it."""

    def __init__(self, path: Path):
        self.path = path
        self.last_step = 0

    def start(self) -> None:
        """Begin anew, without a row."""
        self._write([])

    def mark(self) -> list[Any]:
        """How far the curve has come, for `resume`: its bytes and their hash."""
        return [self.path.stat().st_size, file_hash(self.path)]

    def resume(self, size: int, digest: str) -> None:
        """Cut the curve back to where `mark` was taken; `UserError` if what stands there is not what stood there."""
        self.check(size, digest)
        os.truncate(self.path, size)
        rows = read_curve(self.path)
        self.last_step = int(rows[-1]["step"] or 0) if rows else 0

    def check(self, size: int, digest: str) -> None:
        """Raise `UserError` if the rows up to a `mark` are not those that stood there when it was taken."""
        if file_hash(self.path, size) != digest:
            raise UserError(
                f"{self.path} is damaged: its first {size} bytes are not those that the checkpoint knows; put the file "
                "back, or begin again in another folder"
            )

    def _write(self, rows: list[Row]) -> None:
        write_whole(self.path, "".join([_line(COLUMNS), *(_line(_cells(row)) for row in rows)]).encode())
        self.last_step = int(rows[-1]["step"] or 0) if rows else 0

    def replace(self, row: Mapping[str, float | int | None]) -> None:
        """Add a row, in place of the last one if that is of the same step."""
        if self.last_step == row["step"]:
            self._write([held for held in read_curve(self.path) if held["step"] != row["step"]])
        with writing(self.path), open(self.path, "a", newline="") as file:
            file.write(_line(_cells(row)))
        self.last_step = int(row["step"] or 0)

    def sync(self) -> None:
        """Make the rows last through a power cut."""
        with writing(self.path), open(self.path, "rb") as file:
            os.fsync(file.fileno())


def read_curve(path: Path) -> list[Row]:
    """The rows of a curve file as numbers, empty cells as None; a last line that was cut short is left out."""
    if not path.exists():
        return []
    try:
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        return [{name: _number(cell) for name, cell in row.items()} for row in csv.DictReader(io.StringIO(whole))]
    except (OSError, ValueError, AttributeError, csv.Error) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _cells(row: Mapping[str, float | int | None]) -> list[str]:
    return ["" if row.get(name) is None else repr(row[name]) for name in COLUMNS]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return ",".join(cells) + "\n"


def _number(cell: str) -> float | int | None:
    if not cell:
        return None
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)
