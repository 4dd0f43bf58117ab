"""Rows of JSONL files: what each holds, and what becomes of those that do not hold it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from bakeoff.errors import UserError
from bakeoff.parts.corpora.reading import find_files, hash_of, total_size

logger = logging.getLogger(__name__)

#: How many bad rows a message names.
SHOWN = 5

T = TypeVar("T")


class BadRow(Exception):
    """What is wrong with a row."""


class JsonRows(Generic[T]):
    """What `read` makes of each row, in the order of paths and lines; blank lines are no rows.

    Parameters
    ----------
    corpus : whose files they are, for messages.
    path : a file; a pattern with *, ? or ** ; or a folder, of which all *.jsonl files are taken, at any depth.
    bad_rows : what becomes of rows that are no JSON object, or of which `read` raises `BadRow`. "error" refuses the
        corpus, "skip" leaves them out and says so, once; both name their number and the first of them by file and line.
    lack : what such rows lack, as "hold no text in 'text'". advice : what a user may do besides mending them.
    """

    def __init__(
        self, corpus: str, path: str, bad_rows: str, read: Callable[[dict[str, Any]], T], *, lack: str, advice: str
    ):
        if bad_rows not in ("error", "skip"):
            raise UserError(f"corpus '{corpus}': bad_rows is '{bad_rows}'; it must be 'error' or 'skip'")
        self.corpus, self.path, self.bad_rows = corpus, path, bad_rows
        self.read, self.lack, self.advice = read, lack, advice
        self.files = find_files(path, corpus, (".jsonl",))
        self._told = False

    def __iter__(self) -> Iterator[T]:
        rows = bad = 0
        shown: list[str] = []
        for path in self.files:
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    rows += 1
                    try:
                        found = self.read(_object(line))
                    except BadRow as fault:
                        bad += 1
                        if bad <= SHOWN:
                            shown.append(f"{path}:{number}: {fault}")
                    else:
                        yield found
        self._judge(rows, bad, shown)

    def fingerprint(self, about: str) -> str:
        """A hash of `about` and of what the files hold."""
        return hash_of(f"{self.corpus} {about}", self.files)

    def size(self) -> int:
        """Bytes of all files."""
        return total_size(self.files)

    def _judge(self, rows: int, bad: int, shown: list[str]) -> None:
        if rows == bad and not bad:
            raise UserError(f"corpus '{self.corpus}': path is '{self.path}', and what is found there holds no row")
        more = [f"and {bad - len(shown)} more"] if bad > len(shown) else []
        what = f"corpus '{self.corpus}': {bad} of {rows} rows {self.lack}:"
        message = "\n  ".join([what, *shown, *more])
        if bad and (self.bad_rows == "error" or bad == rows):
            raise UserError(f"{message}\nmend them, {self.advice}, or set bad_rows: skip to leave them out")
        if bad and not self._told:
            logger.warning("%s\nthey are left out", message)
            self._told = True


def text_in(row: dict[str, Any], field: str) -> str:
    """The text in a field; `BadRow` where there is none."""
    if field not in row:
        raise BadRow(f"no field '{field}' among {', '.join(map(repr, row)) or 'none'}")
    if not isinstance(row[field], str):
        raise BadRow(f"field '{field}' is a {type(row[field]).__name__}, no text")
    return row[field]


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"no JSON ({error})") from None
    if not isinstance(row, dict):
        raise BadRow(f"a {type(row).__name__}, no object")
    return row
