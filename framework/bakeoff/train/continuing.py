"""Whether a recipe continues the run that stands in a folder."""

from __future__ import annotations

from typing import Any

from bakeoff.parts.files import read_sealed
from bakeoff.recipe import Recipe
from bakeoff.recipe.reading import as_yaml, parse_value
from bakeoff.train.folder import RunFolder
from bakeoff.train.named_runs import by_content, named_runs
from bakeoff.train.records import check_files, read_recipe, recorded
from bakeoff.train.resume import check_same_run


def check_recorded(place: RunFolder, recipe: Recipe) -> None:
    """Raise `UserError` if the folder's run is of another recipe, or its files are not those that it began with.

    Runs that the recipe names count by their weights: they may have moved, or be gone from where they stood.
    """
    meta = read_sealed(place.meta)
    old, new = _comparable(read_recipe(place)), _comparable(recipe.saved())
    begun = meta.get("runs", {})
    now = begun | named_runs(new) if begun else {}
    check_same_run(by_content(old, begun), by_content(new, now), place.path)
    check_files(place, meta["files"], recorded(place))


def _comparable(saved: dict[str, Any]) -> dict[str, Any]:
    plain = parse_value(as_yaml(saved), "recipe")
    plain.pop("versions", None)
    plain["imports"] = sorted(script["sha256"] for script in plain.get("imports") or [])
    return plain
