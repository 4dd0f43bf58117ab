"""What a run writes down about itself before it starts: recipe, tokenizer, where and with what it runs."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import bakeoff
from bakeoff.errors import UserError
from bakeoff.parts.files import read_json, write_json, write_whole
from bakeoff.recipe import Recipe
from bakeoff.recipe.schema import SEEDS
from bakeoff.train.folder import RunFolder, write_yaml
from bakeoff.train.provenance import code_of, command, git_commit, machine, owners
from bakeoff.train.resume import check_same_run

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from bakeoff.data import Data
    from bakeoff.train.assembly import Assembly


def identify(place: RunFolder) -> str:
    """A word that no other run has: the one that the run in this folder was given when it began, else a new one."""
    known = read_json(place.meta).get("id") if place.holds_work() and place.meta.exists() else None
    return known or secrets.token_hex(8)


def record(place: RunFolder, assembly: Assembly, trainer: pl.Trainer, step: int, identity: str) -> None:
    """Write recipe, tokenizer and `meta.json` where the run begins; note each start of a process in `meta.json`."""
    recipe = assembly.recipe
    if step == 0:
        write_recipe(place, recipe)
        assembly.data.tokenizer.save(place.tokenizer)
        data, length = assembly.data, assembly.model.context.max_length
        described = meta_of(recipe, data, max_length=length, fingerprint=data.fingerprint)
        write_json(place.meta, {"id": identity, **described})
    meta = read_json(place.meta)
    meta["starts"].append(
        {
            "step": step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": command(),
            "machine": machine(),
            "ranks": trainer.num_devices * trainer.num_nodes,
            "strategy": type(trainer.strategy).__name__,
            "precision": str(trainer.precision),
            "versions": recipe.saved()["versions"],
        }
    )
    write_json(place.meta, meta)


def write_recipe(place: RunFolder, recipe: Recipe) -> None:
    """Write the recipe in full, with the scripts that it imports beside it."""
    place.make()
    saved = recipe.saved()
    for script in saved["imports"]:
        source = Path(script["path"])
        script["path"] = f"{place.imports.name}/{script['sha256'][:12]}/{source.name}"
        copy = place.path / script["path"]
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_whole(copy, source.read_bytes())
    write_yaml(place.recipe, saved)


def check_recorded(place: RunFolder, recipe: Recipe) -> None:
    """Raise `UserError` if the folder's run is of another recipe."""
    check_same_run(_comparable(read_recipe(place)), _comparable(recipe.saved()), place.path)


def read_recipe(place: RunFolder) -> dict[str, Any]:
    """The saved recipe as plain values; nothing is imported. `UserError` if it is not there or no recipe."""
    if not place.recipe.exists():
        raise UserError(f"{place.path} is no run: it has no {place.recipe.name}")
    try:
        values = yaml.safe_load(place.recipe.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{place.recipe} is damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(values, dict) or "model" not in values:
        raise UserError(f"{place.recipe} is damaged: it has no section model")
    return values


def _comparable(saved: dict[str, Any]) -> dict[str, Any]:
    plain = yaml.safe_load(yaml.safe_dump(saved))
    plain.pop("versions", None)
    plain["imports"] = sorted(script["sha256"] for script in plain.get("imports") or [])
    return plain


def meta_of(recipe: Recipe, data: Data, *, max_length: int, fingerprint: str | None) -> dict[str, Any]:
    """What `meta.json` says of a run before it starts; `fingerprint` is of the data that it is trained on."""
    components = recipe.components()
    return {
        "name": recipe.name,
        "bakeoff": bakeoff.__version__,
        "hash": recipe.hash(),
        "components": owners(components),
        "code": code_of(components),
        "commit": git_commit(Path(bakeoff.__file__).parent),
        "seeds": {purpose: recipe.seed_of(purpose) for purpose in SEEDS},
        "data": {"fingerprint": fingerprint, "licence": data.corpus.licence},
        "vocab_size": data.vocab_size,
        "max_length": max_length,
        "starts": [],
    }
