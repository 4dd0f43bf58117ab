"""Whether a recipe continues the run that stands in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bakeoff.parts.files import read_sealed
from bakeoff.recipe import Recipe
from bakeoff.recipe.reading import as_yaml, parse_value
from bakeoff.train.folder import RunFolder
from bakeoff.train.records import check_files, read_recipe, recorded
from bakeoff.train.resume import check_same_run
from bakeoff.train.weights import source_of


def check_recorded(place: RunFolder, recipe: Recipe) -> None:
    """Raise `UserError` if the folder's run is of another recipe, or its files are not those that it began with.

    Weights that it began from may have moved, or be gone from where they stood.
    """
    meta = read_sealed(place.meta)
    old, new = _comparable(read_recipe(place)), _comparable(recipe.saved())
    begun = meta.get("weights") or {}
    old["weights"] = begun.get("sha256")
    if new["weights"] is not None:
        gone = new["weights"] == begun.get("path") and not Path(new["weights"]).exists()
        source = None if gone else source_of(recipe)
        new["weights"] = old["weights"] if source is None else source.digest
    check_same_run(old, new, place.path)
    check_files(place, meta["files"], recorded(place))


def _comparable(saved: dict[str, Any]) -> dict[str, Any]:
    plain = parse_value(as_yaml(saved), "recipe")
    plain.pop("versions", None)
    plain["imports"] = sorted(script["sha256"] for script in plain.get("imports") or [])
    return plain
