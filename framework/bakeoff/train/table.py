"""Rows that a run writes down as it goes: one a line, never lost and never repeated."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, ClassVar

from bakeoff.errors import UserError
from bakeoff.parts.files import file_hash, write_whole, writing

Cell = float | int | str | None


class Table:
    """A CSV file of rows by step: appended as they come, and cut back to a checkpoint's step when a run continues from
    it. There is no file before the first row."""

    columns: ClassVar[tuple[str, ...]]
    """Of which the first is the step."""
    texts: ClassVar[tuple[str, ...]] = ()
    """Columns that hold words; the others hold numbers."""

    def __init__(self, path: Path):
        self.path = path
        self.last_step = 0

    def start(self) -> None:
        """Begin anew, without a row."""
        with writing(self.path):
            self.path.unlink(missing_ok=True)
        self.last_step = 0

    def mark(self) -> list[Any] | None:
        """How far it has come, for `resume`: its bytes and their hash; None where there is no file."""
        return [self.path.stat().st_size, file_hash(self.path)] if self.path.exists() else None

    def resume(self, mark: Items[Any] | None) -> None:
        """Cut it back to where `mark` was taken; `UserError` if what stands there is not what stood there."""
        self.check(mark)
        if mark is None:
            self.start()
            return
        os.truncate(self.path, mark[0])
        self.last_step = _last_step(self.read())

    def check(self, mark: Items[Any] | None) -> None:
        """Raise `UserError` if the rows up to a `mark` are not those that stood there when it was taken."""
        if mark is not None and file_hash(self.path, mark[0]) != mark[1]:
            raise UserError(
                f"{self.path} is damaged: its first {mark[0]} bytes are not those that the checkpoint knows; put the "
                "file back, or begin again in another folder"
            )

    def read(self) -> list[dict[str, Any]]:
        """The rows, empty cells as None; a last line that was cut short is left out."""
        if not self.path.exists():
            return []
        try:
            text = self.path.read_text()
            whole = text[: text.rfind("\n") + 1]
            rows = csv.DictReader(io.StringIO(whole))
            return [{k: v if k in self.texts else _number(v) for k, v in row.items()} for row in rows]
        except (OSError, ValueError, AttributeError, csv.Error) as error:
            raise UserError(f"{self.path} is damaged: {error}") from error

    def replace(self, *rows: Mapping[str, Cell]) -> None:
        """Add the rows of a step, in place of the last ones if those are of the same step."""
        if not rows:
            return
        step = int(rows[0]["step"] or 0)
        if self.last_step == step:
            self._write([held for held in self.read() if held["step"] != step])
        elif not self.path.exists():
            self._write([])
        with writing(self.path), open(self.path, "a", newline="") as file:
            file.write("".join(map(self._line, rows)))
        self.last_step = step

    def sync(self) -> None:
        """Make the rows last through a power cut."""
        if self.path.exists():
            with writing(self.path), open(self.path, "rb") as file:
                os.fsync(file.fileno())

    def _write(self, rows: Items[Mapping[str, Cell]]) -> None:
        head = ",".join(self.columns) + "\n"
        write_whole(self.path, "".join([head, *map(self._line, rows)]).encode())
        self.last_step = _last_step(rows)

    def _line(self, row: Mapping[str, Cell]) -> str:
        return ",".join(_cell(row.get(name)) for name in self.columns) + "\n"


def _last_step(rows: Items[Mapping[str, Cell]]) -> int:
    return int(rows[-1]["step"] or 0) if rows else 0


def _cell(value: Cell) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _number(cell: str) -> float | int | None:
    if not cell:
        return None
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)
