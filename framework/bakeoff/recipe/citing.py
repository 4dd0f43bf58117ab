"""The papers behind the parts of a recipe, a comparison or a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.errors import RecipeError, RegistryError
from bakeoff.recipe.comparing import comparison, is_comparison
from bakeoff.recipe.files import locate
from bakeoff.recipe.node import shorten
from bakeoff.recipe.reading import read
from bakeoff.recipe.schema import load
from bakeoff.recipe.single import recipe
from bakeoff.registry import find

if TYPE_CHECKING:
    from bakeoff.interfaces import Reference


def references(source: str | Path) -> dict[str, Reference]:
    """Name -> reference of every part, and of adapters, that has one, sorted; of a folder, what its saved recipes name.

    Nothing that a run folder carries is executed: parts of its scripts are left out.
    """
    path, shown = locate(source, Path.cwd())
    if path.is_dir():
        saved = sorted(path.rglob("recipe.yaml"))
        if not saved:
            raise RecipeError(f"{shown}: holds no recipe.yaml, so it is the folder of no run")
        trees = [shorten(read(file).values) for file in saved]
        named = {name for tree in trees for name in _named(tree)}
    else:
        made = list(comparison(source).arms.values()) if is_comparison(source) else [recipe(source)]
        trees, named = [one.tree for one in made], {name for one in made for name in one.components()}
    found = dict(_referenced(named))
    if any(tree.get("adapters") is not None for tree in trees):
        found["adapters"] = load("bakeoff.parts.low_rank:LowRank").reference
    return dict(sorted(found.items()))


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("use"), str):
            yield value["use"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _named(item)


def _referenced(named: set[str]) -> Iterator[tuple[str, Reference]]:
    for name in named:
        try:
            reference = getattr(find(name), "reference", None)
        except RegistryError:
            continue
        if reference is not None:
            yield name, reference
