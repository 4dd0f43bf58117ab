"""Interpolations: `${path.to.a.value}` and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bakeoff.errors import RecipeError
from bakeoff.recipe.places import at
from bakeoff.recipe.reading import MAX_VALUES, brief, join

_INTERPOLATION = re.compile(r"\$\{([\w.\-]+)\}")
#: Letters of a text that count as one value.
_TEXT = 64


def check_interpolations(values: Any, places: Mapping[str, str]) -> None:
    """Refuse interpolations other than `${path}`, circles, and such as write out to more than a recipe can hold."""
    _Sizes(values, places).of(values, "", ())


class _Sizes:
    """How many values a value holds once interpolations are written out."""

    def __init__(self, values: Any, places: Mapping[str, str]):
        self.values, self.places = values, places
        self.known: dict[str, int] = {}

    def of(self, value: Any, path: str, chain: tuple[str, ...]) -> int:
        if isinstance(value, dict):
            return 1 + sum(self.of(item, join(path, key), chain) for key, item in value.items())
        if isinstance(value, list):
            return 1 + sum(self.of(item, join(path, index), chain) for index, item in enumerate(value))
        if not isinstance(value, str):
            return 1
        targets = _INTERPOLATION.findall(value)
        if len(targets) != value.count("${"):
            raise self._error(
                path,
                f"'{brief(value)}' is no interpolation that a recipe may hold; only ${{path.to.a.value}} is: "
                "a recipe is complete, and reads no environment and runs nothing",
            )
        return 1 + len(value) // _TEXT + sum(self._follow(target, path, chain) for target in targets)

    def _follow(self, target: str, path: str, chain: tuple[str, ...]) -> int:
        if target in chain:
            raise self._error(path, f"interpolations go in a circle: {' -> '.join([*chain, target])}")
        if target not in self.known:
            self.known[target] = self.of(self._at(target), target, (*chain, target))
        if self.known[target] > MAX_VALUES:
            raise self._error(path, f"${{{target}}} writes out to more than {MAX_VALUES} values")
        return self.known[target]

    def _at(self, path: str) -> Any:
        held = self.values
        for word in path.split("."):
            if isinstance(held, list) and word.isdigit() and int(word) < len(held):
                held = held[int(word)]
            else:
                held = held.get(word) if isinstance(held, dict) else None
        return held

    def _error(self, path: str, message: str) -> RecipeError:
        return RecipeError(f"{path}{at(self.places, path)}: {message}")
