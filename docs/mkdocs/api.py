"""The reference of Python names: what `bakeoff`, its interfaces and its kit export."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import bakeoff
import bakeoff.interfaces
import bakeoff.testing
from bakeoff import errors
from bakeoff.compare import Compared
from bakeoff.model.generate import generate
from bakeoff.recipe import Recipe
from bakeoff.registry import KINDS, Entry, interface_of
from bakeoff.train import Run, fit


@dataclass(frozen=True)
class Page:
    """A page, and what it documents by the name that users write."""

    title: str
    uri: str
    introduction: str

    def names(self) -> Iterator[tuple[str, Any]]:
        """Each name with its object."""
        yield from _NAMES[self.title]()


def _python() -> Iterator[tuple[str, Any]]:
    yield from (
        ("bakeoff.recipe", bakeoff.recipe.recipe),  # type: ignore[attr-defined]
        ("Recipe", Recipe),
        ("bakeoff.train.fit", fit),
        ("bakeoff.load_run", bakeoff.load_run),
        ("Run", Run),
        ("generate", generate),
        ("bakeoff.compare", bakeoff.compare.compare),  # type: ignore[attr-defined]
        ("Compared", Compared),
        ("bakeoff.register", bakeoff.register),
        ("bakeoff.find", bakeoff.find),
        ("bakeoff.names", bakeoff.names),
        ("Entry", Entry),
    )


def _interfaces() -> Iterator[tuple[str, Any]]:
    """All but those that have a kind's page."""
    of_kinds = {interface_of(kind) for kind in KINDS}
    for name in bakeoff.interfaces.__all__:
        thing = getattr(bakeoff.interfaces, name)
        if inspect.isclass(thing) and thing not in of_kinds:
            yield name, thing


def _testing() -> Iterator[tuple[str, Any]]:
    for name in bakeoff.testing.__all__:
        yield name, getattr(bakeoff.testing, name)


def _errors() -> Iterator[tuple[str, Any]]:
    for name, thing in vars(errors).items():
        if inspect.isclass(thing) and thing.__module__ == errors.__name__:
            yield name, thing


#: Classes that users are given and do not call, with what they use of them.
_MADE: dict[Any, list[str]] = {
    Recipe: ["name", "tree", "full", "sources", "check", "override", "build", "components", "hash", "print", "fit"],
    Run: ["curve", "data", "generate"],
    Compared: ["table", "verdicts", "report", "complete", "to_frame", "figures"],
}

_NAMES = {"Python": _python, "Interfaces": _interfaces, "Conformance kit": _testing, "Errors": _errors}

PAGES = (
    Page("Python", "reference/python.md", "What a script or notebook uses. Importing `bakeoff` is light."),
    Page(
        "Interfaces",
        "reference/interfaces.md",
        "What a part is given and returns, from `bakeoff.interfaces`. Each kind's own class is on the kind's page.",
    ),
    Page("Conformance kit", "reference/testing.md", "`bakeoff.testing`: the laws, run on a part or a model."),
    Page("Errors", "reference/errors.md", "What a user can mend, from `bakeoff.errors`."),
)


def pages() -> Mapping[str, str]:
    """Each page's text."""
    return {page.uri: _text(page) for page in PAGES}


def _text(page: Page) -> str:
    return "\n\n".join([f"# {page.title}", page.introduction, *(directive(*pair) for pair in page.names())])


def directive(name: str, thing: Any, *, level: int = 2, members: bool = True) -> str:
    """What mkdocstrings is asked for: the object's documentation under a heading of this name."""
    chosen = [] if members else ["      members: false"]
    if thing in _MADE:
        chosen = ["      merge_init_into_class: false", f"      members: [{', '.join(_MADE[thing])}]"]
    lines = [
        f"::: {thing.__module__}.{thing.__qualname__}",
        "    options:",
        f"      heading: {name}",
        f"      toc_label: {name}",
        f"      heading_level: {level}",
        *chosen,
    ]
    return "\n".join(lines)
