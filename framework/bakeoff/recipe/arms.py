"""The arms of a comparison, each as a whole recipe: a base, another file's sections in its place, overrides by path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bakeoff.errors import RecipeError
from bakeoff.recipe.layers import Tree
from bakeoff.recipe.overriding import overrides
from bakeoff.recipe.reading import Layer, brief, join
from bakeoff.recipe.schema import DEFAULTS, SECTIONS
from bakeoff.recipe.single import Recipe, gathered


@dataclass
class Changes:
    """Overrides of a comparison, sorted by what they reach: its own sections, what is tuned, every arm, single arms."""

    sections: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, Any] = field(default_factory=dict)
    everywhere: dict[str, Any] = field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)


def sort_changes(changes: Iterable[str] | Mapping[str, Any]) -> Changes:
    """`budget.tokens=…` is the comparison's, `model.depth=…` every arm's, `arms.NAME.model.depth=…` one arm's."""
    found = Changes()
    for path, value in overrides(changes).items():
        first, _, rest = path.partition(".")
        arm, _, inner = rest.partition(".")
        if first == "arms" and inner:
            found.arms.setdefault(arm, {})[inner] = value
        elif first == "base" and rest:
            found.everywhere[rest] = value
        elif first in ("arms", "base"):
            raise RecipeError(f"override '{path}': {first} stands in the file; set single values, {first}.….path=value")
        elif first in SECTIONS and first not in ("name", "imports"):
            found.everywhere[path] = value
        elif first == "tune" and rest:
            found.tune[rest] = value
        else:
            found.sections[path] = value
    return found


def base_recipe(layer: Layer, folder: Path) -> Recipe:
    """The recipe that arms are made of; scripts that the comparison imports are known to all of them."""
    if "base" not in layer.values:
        raise RecipeError("base: a comparison needs the recipe that arms change, as in base: models/transformer.yaml")
    source = layer.values["base"]
    if not isinstance(source, (str, Mapping)):
        raise RecipeError(f"base: is a recipe's file, or its sections, not {brief(source)}")
    laid = Tree()
    laid.lay(DEFAULTS, "default")
    layers, path, name = gathered(source, folder)
    for one in layers:
        laid.lay(one.values, one.places)
    laid.lay({"imports": layer.values.get("imports") or []}, layer.places)
    return Recipe(laid, path, name)


def arm_recipes(layer: Layer, folder: Path, base: Recipe, changes: Changes) -> dict[str, Recipe]:
    """The recipe of each arm by name, in the order of the file."""
    arms = layer.values.get("arms")
    if not isinstance(arms, Mapping) or not arms:
        raise RecipeError("arms: is a mapping of names to overrides, as in {attention: {}, wide: {model.d_model: 512}}")
    found = {}
    for name, change in arms.items():
        if change is not None and not isinstance(change, Mapping):
            raise RecipeError(f"arms.{name}: is a mapping of paths to values, not {brief(change)}")
        recipe = _arm(name, dict(change or {}), base, layer, folder, changes)
        found[name] = recipe.override(changes.arms.get(name, {})).named(name)
    return found


def _arm(name: str, change: dict[str, Any], base: Recipe, layer: Layer, folder: Path, changes: Changes) -> Recipe:
    """The base, or the sections of the file that the arm extends in place of the base's, then the arm's own values."""
    parent = change.pop("extends", None)
    if parent is not None and not isinstance(parent, str):
        raise RecipeError(f"arms.{name}.extends: is a recipe's file, not {brief(parent)}")
    recipe = base if parent is None else base.with_sections(gathered(parent, folder)[0])
    recipe = recipe.override(changes.everywhere)
    for path, value in overrides(change).items():
        place = layer.places.get(join(f"arms.{name}", path), "")
        recipe = recipe.override({path: value}, f"{place}, arm {name}".removeprefix(", "))
    return recipe
