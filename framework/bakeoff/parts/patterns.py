"""Weights chosen by their names: shell-style patterns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase


def chosen(patterns: Iterable[str], names: Iterable[str]) -> set[str]:
    """The names that match any of the patterns: `*` is any text, dots too, `?` one character, `[…]` one of several.

    Raises `ValueError` for patterns that match no name, with the nearest that would.
    """
    known, found, told = list(names), set[str](), []
    for pattern in patterns:
        matching = {name for name in known if fnmatchcase(name, pattern)}
        found |= matching
        if not matching:
            told.append(f"no name matches '{pattern}'{_nearest(pattern, known)}")
    if told:
        raise ValueError("; ".join(told))
    return found


def _nearest(pattern: str, names: list[str]) -> str:
    """The question whether all inside the module of that name, or one of up to three names, was meant."""
    if any(fnmatchcase(name, f"{pattern}.*") for name in names):
        return f"; did you mean '{pattern}.*'?"
    alike = dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", name) for name in names)
    near = difflib.get_close_matches(re.sub(r"\.\d+(?=\.)", ".*", pattern), alike, n=3, cutoff=0.0)
    return f"; the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}" if near else ""
