"""Docstrings as Markdown: sections of `name : description` lines become lists."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: "Parameters" or "Attributes", a rule, and all lines until one is empty.
_SECTION = re.compile(r"^(Parameters|Attributes)\n-+\n((?:.+\n?)+)", re.MULTILINE)

#: A further name on a line.
_SECOND = re.compile(r"\. (\w+(?:, \w+)*) : ")


class Sections(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """One object."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """The docstring with each section as a bold title and a list."""
    return _SECTION.sub(lambda found: f"**{found[1]}**\n\n{_list(found[2])}\n", docstring)


def _list(lines: str) -> str:
    items: list[str] = []
    for line in _SECOND.sub(r".\n\1 : ", lines).splitlines():
        name, colon, text = line.partition(" : ")
        if colon and not line.startswith(" "):
            names = ", ".join(f"`{one.strip()}`" for one in name.split(","))
            items.append(f"* {names}: {text}")
        else:
            items[-1] += f"\n    {line.strip()}"
    return "\n".join(items)
