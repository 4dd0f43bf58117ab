"""What a run writes down about itself before it starts: recipe, tokenizer, where and with what it runs."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bakeoff
from bakeoff.data.preparing import hash_folder
from bakeoff.errors import RecipeError, UserError
from bakeoff.parts.files import file_hash, read_sealed, write_sealed, write_whole
from bakeoff.parts.kernels import choices
from bakeoff.recipe import Recipe
from bakeoff.recipe.reading import read
from bakeoff.recipe.schema import SEEDS
from bakeoff.train.folder import RunFolder, write_yaml
from bakeoff.train.named_runs import named_runs
from bakeoff.train.provenance import code_of, command, git_commit, machine, owners
from bakeoff.train.saving import steps

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from bakeoff.data import Data
    from bakeoff.train.assembly import Assembly


def identify(place: RunFolder) -> str:
    """A word that no other run has: the one that the run in this folder was given when it began, else a new one."""
    known = read_sealed(place.meta).get("id") if place.holds_work() and place.meta.exists() else None
    return known or secrets.token_hex(8)


def described(recipe: Recipe, place: RunFolder, *, code: bool) -> dict[str, str]:
    """What all ranks of a run must have in common before they start; with the code, where each has its own."""
    kept = steps(place.checkpoints)
    trainer = recipe.tree["trainer"]
    layout = {key: trainer.get(key) for key in ("devices", "num_nodes", "strategy")}
    sources = json.dumps(code_of(recipe.components()), sort_keys=True) if code else ""
    return {
        "recipe": recipe.hash(),
        "code": hashlib.sha256(sources.encode()).hexdigest()[:12],
        "layout": ", ".join(f"{key} {value}" for key, value in layout.items() if value is not None),
        "newest checkpoint": f"step {kept[-1][0]}" if kept else "none",
    }


def record(
    place: RunFolder,
    assembly: Assembly,
    trainer: pl.Trainer,
    step: int,
    identity: str,
    weights: Mapping[str, Any] | None = None,
) -> None:
    """Write recipe, tokenizer and `meta.json` where the run begins; note each start of a process in `meta.json`.

    `weights` describes those that the run begins from, where they are not drawn.
    """
    recipe = assembly.recipe
    if step == 0:
        write_recipe(place, recipe)
        assembly.data.tokenizer.save(place.tokenizer)
        data, length = assembly.data, assembly.model.context.max_length
        described = meta_of(recipe, data, max_length=length, fingerprint=data.fingerprint)
        begun = {"weights": weights, "runs": named_runs(recipe.saved()), "files": recorded(place)}
        write_sealed(place.meta, {"id": identity, **described, **begun})
    meta = read_sealed(place.meta)
    meta["starts"].append(
        {
            "step": step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": command(),
            "machine": machine(),
            "ranks": trainer.num_devices * trainer.num_nodes,
            "strategy": type(trainer.strategy).__name__,
            "precision": str(trainer.precision),
            "kernels": choices(assembly.model, trainer.strategy.root_device),
            "versions": recipe.saved()["versions"],
        }
    )
    write_sealed(place.meta, meta)


def recorded(place: RunFolder) -> dict[str, str]:
    """Hashes of what stands beside `meta.json` before a run starts, by name."""
    return {place.recipe.name: file_hash(place.recipe), place.tokenizer.name: hash_folder(place.tokenizer)}


def check_files(place: RunFolder, hashes: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise `UserError` naming the first file of a run that is not the one that was recorded."""
    for name, digest in found.items():
        if hashes.get(name) != digest:
            raise UserError(f"{place.path / name} is damaged: it is not what the run has written there")


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


def write_summary(place: RunFolder, metrics: Mapping[str, Any]) -> None:
    """Write `summary.json`, whose presence says that the run is finished, with the hashes of what it came to."""
    held = [path for path in (place.weights, place.curve, place.layers, place.means) if path.exists()]
    write_sealed(place.summary, {**metrics, "files": {path.name: file_hash(path) for path in held}})


def read_recipe(place: RunFolder) -> dict[str, Any]:
    """The saved recipe as plain values; nothing is imported. `UserError` if it is not there or no recipe."""
    if not place.recipe.exists():
        raise UserError(f"{place.path} is no run: it has no {place.recipe.name}")
    try:
        values = read(place.recipe).values
    except RecipeError as error:
        raise UserError(f"{place.recipe} is damaged: {error}") from error
    if not isinstance(values.get("model"), dict):
        raise UserError(f"{place.recipe} is damaged: it has no section model")
    return values


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
