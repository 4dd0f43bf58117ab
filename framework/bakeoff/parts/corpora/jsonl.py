"""Corpus `jsonl`: one JSON object a line, text in one of its fields."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

from bakeoff.errors import UserError
from bakeoff.parts.corpora.reading import find_files, hash_of, total_size
from bakeoff.parts.corpora.splitting import DealtCorpus

logger = logging.getLogger(__name__)

#: How many bad rows a message names.
SHOWN = 5


class JsonLines(DealtCorpus):
    """One document a row, in the order of paths and lines; blank lines are no rows.

    About the share `validation` of the rows is held out, chosen by a hash of their text and `seed`; equal texts stand
    on one side.

    Parameters
    ----------
    path : a file; a pattern with *, ? or ** ; or a folder, of which all *.jsonl files are taken, at any depth.
    field : which field of a row holds the text.
    bad_rows : what becomes of rows that are no JSON object with a text in `field`. "error" refuses the corpus, "skip"
        leaves them out and says so; both name their number and the first of them by file and line.
    """

    def __init__(
        self, *, path: str, field: str = "text", bad_rows: str = "error", validation: float = 0.1, seed: int = 0
    ):
        super().__init__(validation, seed)
        if bad_rows not in ("error", "skip"):
            raise UserError(f"corpus 'jsonl': bad_rows is '{bad_rows}'; it must be 'error' or 'skip'")
        self.path, self.field, self.bad_rows = path, field, bad_rows
        self.files = find_files(path, "jsonl", (".jsonl",))
        self._told = False

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it needs data from elsewhere."""
        return []

    def texts(self) -> Iterator[str]:
        rows = bad = 0
        shown: list[str] = []
        for path in self.files:
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    rows += 1
                    text, fault = _text(line, self.field)
                    if text is not None:
                        yield text
                        continue
                    bad += 1
                    if bad <= SHOWN:
                        shown.append(f"{path}:{number}: {fault}")
        self._judge(rows, bad, shown)

    def fingerprint(self) -> str:
        return hash_of(f"jsonl {self.field} {self.bad_rows} {self.validation} {self.seed}", self.files)

    def size(self) -> int:
        return total_size(self.files)

    @property
    def licence(self) -> str:
        return "unknown: the user's own files"

    def _judge(self, rows: int, bad: int, shown: list[str]) -> None:
        if rows == bad and not bad:
            raise UserError(f"corpus 'jsonl': path is '{self.path}', and what is found there holds no row")
        more = [f"and {bad - len(shown)} more"] if bad > len(shown) else []
        what = f"corpus 'jsonl': {bad} of {rows} rows hold no text in '{self.field}':"
        message = "\n  ".join([what, *shown, *more])
        if bad and (self.bad_rows == "error" or bad == rows):
            raise UserError(f"{message}\nmend them, name another field, or set bad_rows: skip to leave them out")
        if bad and not self._told:
            logger.warning("%s\nthey are left out", message)
            self._told = True


def _text(line: bytes, field: str) -> tuple[str | None, str]:
    """The text of a row, or None and what is wrong with the row."""
    try:
        row = json.loads(line)
    except ValueError as error:
        return None, f"no JSON ({error})"
    if not isinstance(row, dict):
        return None, f"a {type(row).__name__}, no object"
    if field not in row:
        return None, f"no field '{field}' among {', '.join(map(repr, row)) or 'none'}"
    if not isinstance(row[field], str):
        return None, f"field '{field}' is a {type(row[field]).__name__}, no text"
    return row[field], ""
