"""One test case for each registered component and each set of its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from bakeoff.errors import RegistryError
from bakeoff.registry import Entry, find, names
from bakeoff.testing.checking import check, examples_of
from bakeoff.testing.law import laws_for
from bakeoff.testing.report import Report


class Case(NamedTuple):
    """A component, one set of its arguments, and which of its laws."""

    name: str
    arguments: Mapping[str, Any]
    laws: tuple[str, ...]

    def run(self) -> Report:
        """Check the laws; raises `LawFailure` where one is broken."""
        report = check(self.name, arguments=self.arguments, laws=self.laws, quick=False)
        report.raise_for_failures()
        return report


def cases(package: str | None = None, kind: str | None = None) -> list[Any]:
    """Pytest parameters, each a `Case`, for the components of a package (by default of all, those of scripts too).

        @pytest.mark.parametrize("case", bakeoff.testing.cases("my-idea"))
        def test_laws(case):
            case.run()

    Laws that take long are cases of their own, marked `slow`.
    One that cannot be imported is a case that fails. Raises `ValueError` if the package registers no component.
    """
    entries = [entry for entry in names(kind) if package is None or _plain(entry.package) == _plain(package)]
    if not entries:
        known = sorted({entry.package for entry in names()})
        raise ValueError(
            f"package '{package}' registers no {kind or 'component'}; packages that do: {', '.join(known)}"
        )
    return [parameter for entry in entries for parameter in _parameters(entry)]


def _parameters(entry: Entry) -> list[Any]:
    quick = {law.name for law in laws_for(entry.kind, None, slow=False)}
    slow = {law.name for law in laws_for(entry.kind, None, slow=True)} - quick
    try:
        examples = examples_of(find(entry.name))
    except RegistryError:
        examples = [{}]
    found = []
    for number, example in enumerate(examples):
        for laws, marks, suffix in ((quick, (), ""), (slow, (pytest.mark.slow,), "-slow")):
            if laws:
                case = Case(entry.name, example, tuple(sorted(laws)))
                found.append(pytest.param(case, id=f"{entry.kind}-{entry.name}-{number}{suffix}", marks=marks))
    return found


def _plain(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
