"""One trial, in its own process: train, measure, leave `result.json`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bakeoff.compare.layers import kept
from bakeoff.compare.plan import digest
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate import Measured, asked
from bakeoff.parts.files import read_json, write_json
from bakeoff.parts.kernels import choices
from bakeoff.recipe import Recipe
from bakeoff.recipe import recipe as read_recipe
from bakeoff.train.fitting import fit
from bakeoff.train.folder import RunFolder
from bakeoff.train.provenance import code_of, machine

#: Columns of a run's curve that the report draws.
DRAWN = ("step", "tokens", "flops", "seconds", "loss", "bits_per_byte", "nats_per_token")


def run_trial(folder: Path, progress: Callable[[dict[str, Any]], None]) -> None:
    """Train the recipe in `folder/run`, from its newest checkpoint if there is one, and measure the model."""
    start = time.perf_counter()
    about = read_json(folder / "trial.json")
    recipe = read_recipe(RunFolder(folder / "run").recipe)
    code = _note_code(folder, digest(code_of([*recipe.components(), *about.get("tasks", ())])))
    run = fit(recipe, folder=folder / "run", progress=progress)
    measured = Measured.of(run.model.to(device_of(recipe)), run.data, recipe)
    measures: dict[str, float] = {}
    unmeasured: dict[str, str] = {}
    shown: dict[str, str] = {}
    drawn: dict[str, Any] = {}
    for each in asked(about["measures"]):
        try:
            answer = each.answer(measured, progress)
        except CapabilityError as error:
            unmeasured[each.label] = str(error)
        else:
            measures |= answer.figures
            shown |= {each.label: answer.html} if answer.html else {}
            drawn |= {each.label: answer.data} if answer.data else {}
    odd = [key for key, value in measures.items() if key.startswith("validation.") and not math.isfinite(value)]
    if odd:
        raise UserError(f"{', '.join(odd)} of the trained model is not finite")
    result = {
        "measures": measures,
        "unmeasured": unmeasured,
        "shown": shown,
        "drawn": drawn,
        "curve": [{column: row.get(column) for column in DRAWN} for row in run.curve],
        "layers": kept(run.layers),
        "seconds": time.perf_counter() - start,
        "code": code,
        "machine": machine(),
        "kernels": choices(run.model, device_of(recipe)),
        "versions": recipe.saved()["versions"],
    }
    write_json(folder / "result.json", result)


def device_of(recipe: Recipe) -> torch.device:
    """Where the recipe trains; Lightning gives the model back on the CPU."""
    asked = recipe.tree["trainer"].get("accelerator") or "auto"
    found = torch.accelerator.current_accelerator() if asked != "cpu" and torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _note_code(folder: Path, present: str) -> list[str]:
    """The versions of the code that have run the trial, the present one last; one alone unless it was continued."""
    path = folder / "code.json"
    known = read_json(path) if path.exists() else []
    if present not in known:
        known.append(present)
        write_json(path, known)
    return known
