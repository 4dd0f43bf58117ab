"""Where values were written, by dotted path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bakeoff.errors import RecipeError
from bakeoff.recipe.reading import MAX_KEY, brief, join

_KEY = re.compile(rf"[\w\-/ ]{{1,{MAX_KEY}}}")


def place_of(places: Mapping[str, str], path: str) -> str | None:
    """Where a path, or the nearest thing that it stands in, was written; else what stands in it."""
    outer = path
    while outer and outer not in places:
        outer = outer.rpartition(".")[0]
    inner = (place for other, place in places.items() if other.startswith(f"{path}."))
    return places.get(outer) or next(inner, None)


def at(places: Mapping[str, str] | str, path: str) -> str:
    """What a message adds to a path: its place in brackets, if one is known; a text as `places` speaks for all."""
    place = placed(places, path)
    return f" ({place})" if place else ""


def placed(places: Mapping[str, str] | str, path: str) -> str:
    """The place of a path, or of the nearest thing that is known."""
    return places if isinstance(places, str) else (place_of(places, path) or "")


def inner_paths(value: Any, path: str) -> list[str]:
    """A path and the paths of all that stands in the value."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in inner_paths(item, join(path, key)))]


def check_keys(values: Any, places: Mapping[str, str], path: str = "") -> None:
    """Raise `RecipeError` for a key that could not be addressed by a dotted path."""
    if isinstance(values, list):
        for index, item in enumerate(values):
            check_keys(item, places, join(path, index))
    elif isinstance(values, Mapping):
        for key, item in values.items():
            inner = join(path, key)
            if not (isinstance(key, str) and _KEY.fullmatch(key)):
                raise RecipeError(
                    f"{brief(inner)}{at(places, path or key)}: '{brief(key)}' is no key of a recipe: "
                    "keys are single words; a path such as a.b is written nested, a: {b: …}, or given as an override"
                )
            check_keys(item, places, inner)
