"""Corpus `jsonl`: one JSON object a line, text in one of its fields."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bakeoff.parts.corpora.json_rows import JsonRows, text_in
from bakeoff.parts.corpora.splitting import DealtCorpus


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
        self.path, self.field, self.bad_rows = path, field, bad_rows
        lack, advice = f"hold no text in '{field}'", "name another field"
        self.rows = JsonRows("jsonl", path, bad_rows, partial(text_in, field=field), lack=lack, advice=advice)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it needs data from elsewhere."""
        return []

    def texts(self) -> Iterator[str]:
        return iter(self.rows)

    def fingerprint(self) -> str:
        return self.rows.fingerprint(f"{self.field} {self.bad_rows} {self.validation} {self.seed}")

    def size(self) -> int:
        return self.rows.size()

    @property
    def licence(self) -> str:
        return "unknown: the user's own files"
