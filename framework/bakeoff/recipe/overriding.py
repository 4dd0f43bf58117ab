"""Overrides: `path=value` lines or a mapping of paths to values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bakeoff.errors import RecipeError
from bakeoff.recipe.node import short_name, short_path, shorten
from bakeoff.recipe.reading import brief, parse_value


def overrides(changes: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Override paths and values, short form; those that name a class come first, so that order does not matter."""
    if isinstance(changes, str):
        changes = [changes]
    pairs = changes.items() if isinstance(changes, Mapping) else [_pair(change) for change in changes]
    found = {}
    for path, value in pairs:
        short = short_path(path)
        named = short.rpartition(".")[2] == "use" and isinstance(value, str)
        found[short] = short_name(value) if named else shorten(value, path)
    return dict(sorted(found.items(), key=lambda item: _rank(*item)))


def _rank(path: str, value: Any) -> tuple[bool, int]:
    """Those that name a class first, and of them the outer ones."""
    names_class = path.rpartition(".")[2] == "use" or (isinstance(value, Mapping) and "use" in value)
    return not names_class, path.removesuffix(".use").count(".")


def _pair(change: str) -> tuple[str, Any]:
    path, equals, text = change.partition("=")
    if not equals or not path.strip() or not all(path.strip().split(".")):
        raise RecipeError(f"override '{brief(change)}': is written path=value, as in model.depth=12")
    return path.strip(), parse_value(text, f"override '{brief(change)}'")
