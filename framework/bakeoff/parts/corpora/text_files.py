"""Corpus `text_files`: one file, a glob, or a folder of text."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError
from bakeoff.parts.corpora.reading import find_files, hash_of, total_size
from bakeoff.parts.corpora.splitting import DealtCorpus


class TextFiles(DealtCorpus):
    """One document a file, in the order of their paths.

    About the share `validation` of the files is held out, chosen by a hash of their content and `seed`, at least one;
    equal files stand on one side. Where there is but one file, validation is its end: the last `validation` of its
    characters, from a line end on.

    Parameters
    ----------
    path : a file; a pattern with *, ? or ** ; or a folder, of which all *.txt and *.md files are taken, at any depth.
    validation : share of the files, or of the one file's characters; 0: none.
    encoding : of the files. A file that is something else is an error that names the place.
    """

    def __init__(self, *, path: str, validation: float = 0.1, seed: int = 0, encoding: str = "utf-8"):
        super().__init__(validation, seed)
        self.path, self.encoding = path, encoding
        try:
            codecs.lookup(encoding)
        except LookupError as error:
            raise UserError(f"corpus 'text_files': {error}") from error
        self.files = find_files(path, "text_files", (".txt", ".md"))
        if not self.size():
            raise UserError(f"corpus 'text_files': path is '{path}', and what is found there is empty")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """The source files beside this one."""
        return [{"path": str(Path(__file__).parent / "*.py"), "validation": 0.5}]

    def texts(self) -> Iterator[str]:
        for path in self.files:
            try:
                yield path.read_bytes().decode(self.encoding)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}: what stands at byte {error.start} is not {self.encoding} ({error.reason}); set the "
                    "corpus's encoding to what the file is, or leave the file out"
                ) from error

    def fingerprint(self) -> str:
        return hash_of(f"text_files {self.validation} {self.seed} {self.encoding}", self.files)

    def size(self) -> int:
        return total_size(self.files)

    @property
    def licence(self) -> str:
        return "unknown: the user's own files"
