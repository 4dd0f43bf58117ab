"""Corpus `python_source`: the standard library of the running interpreter."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from bakeoff.errors import UserError
from bakeoff.parts.corpora.reading import hash_of, total_size
from bakeoff.parts.corpora.splitting import DealtCorpus

#: Folders of installed packages, which may stand inside that of the standard library.
FOREIGN = {"site-packages", "dist-packages", "__pycache__"}


class PythonSource(DealtCorpus):
    """One document a .py file of the standard library, in the order of their paths; 10 to 32 MB, by interpreter.

    Files that are empty or not UTF-8 are left out. About the share `validation` of the rest is held out, chosen by a
    hash of their content and `seed`. The fingerprint is that of the files' content.
    """

    def __init__(self, *, validation: float = 0.1, seed: int = 0):
        super().__init__(validation, seed)
        self.folder = Path(sysconfig.get_path("stdlib"))

    @cached_property
    def files(self) -> list[Path]:
        """The files, sorted."""
        found = [path for path in self.folder.rglob("*.py") if not FOREIGN & {*path.relative_to(self.folder).parts}]
        if not found:
            raise UserError(f"corpus 'python_source': {self.folder} holds no .py file")
        return sorted(found)

    def texts(self) -> Iterator[str]:
        for path in self.files:
            try:
                text = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
            if text:
                yield text

    def fingerprint(self) -> str:
        return hash_of(f"python_source {self.validation} {self.seed}", self.files)

    def size(self) -> int:
        return total_size(self.files)

    @property
    def licence(self) -> str:
        return "PSF-2.0"
