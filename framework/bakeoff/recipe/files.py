"""Files that extend files: where they are, and the layers that they make."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bakeoff.errors import RecipeError
from bakeoff.parts.files import expanded
from bakeoff.recipe.node import shorten, shorten_places
from bakeoff.recipe.places import at
from bakeoff.recipe.reading import Layer, brief, read


def locate(source: str | Path, folder: Path) -> tuple[Path, str]:
    """The file that a source names, and how messages name it: `bakeoff:models/x.yaml` is one that is shipped."""
    text = str(source)
    if text.startswith("bakeoff:"):
        name = text.removeprefix("bakeoff:")
        known = sorted(path.relative_to(shipped()).as_posix() for path in shipped().rglob("*.yaml"))
        if name not in known:
            raise RecipeError(f"{text}: no such recipe is shipped; there are: {', '.join(known)}")
        return (shipped() / name).resolve(), text
    path = expanded(folder / source)
    try:
        shown = str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        shown = str(path)
    return path.resolve(), shown


def shipped() -> Path:
    """The folder of the recipes that come with the package (a source checkout: beside `framework`)."""
    import bakeoff

    package = Path(bakeoff.__file__).parent
    return package / "recipes" if (package / "recipes").is_dir() else package.parents[1] / "recipes"


def stack(path: Path, shown: str, chain: tuple[str, ...] = ()) -> list[Layer]:
    """The layers of a file, those it extends first; keys in the short form, `imports` by absolute path.

    Raises `RecipeError` for a missing parent, and for a circle with its whole chain.
    """
    if shown in chain:
        raise RecipeError(f"extends goes in a circle: {' -> '.join([*chain[chain.index(shown) :], shown])}")
    return expand(read(path, shown), path.parent, (*chain, shown))


def expand(layer: Layer, folder: Path, chain: tuple[str, ...] = ()) -> list[Layer]:
    """The layers that a read layer extends, then itself."""
    parents = layer.values.pop("extends", None) or []
    parents = [parents] if isinstance(parents, str) else parents
    if not (isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)):
        raise RecipeError(f"extends{at(layer.places, 'extends')}: is a file or a list of files, not {brief(parents)}")
    layers: list[Layer] = []
    for parent in parents:
        path, shown = locate(parent, folder)
        if not os.path.isfile(path):
            raise RecipeError(f"extends{at(layer.places, 'extends')}: there is no file {brief(shown, 200)}")
        layers += stack(path, shown, chain)
    values = absolute_scripts(shorten(layer.values, "", layer.places), folder)
    return [*layers, Layer(values, shorten_places(layer.places))]


def parent_of(shown: str) -> str | None:
    """How messages name the last file that a file extends; None where it extends none, or there is no such file."""
    path = locate(shown, Path.cwd())[0]
    parents = read(path, shown).values.get("extends") if os.path.isfile(path) else None
    last = parents[-1] if isinstance(parents, list) and parents else parents
    return locate(last, path.parent)[1] if isinstance(last, str) else None


def absolute_scripts(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same values with the scripts of `imports`, which are relative to `folder`, by absolute path."""
    scripts = values.get("imports")
    return values | {"imports": [_absolute(s, folder) for s in scripts]} if isinstance(scripts, list) else values


def _absolute(script: Any, folder: Path) -> Any:
    if isinstance(script, str):
        return str((folder / script).resolve())
    if isinstance(script, Mapping) and isinstance(script.get("path"), str):
        return {**script, "path": str((folder / script["path"]).resolve())}
    return script
