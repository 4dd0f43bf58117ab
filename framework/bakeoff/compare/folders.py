"""The folder of a trial, as its process finds it. Apart from `trial`, which imports Lightning."""

from __future__ import annotations

from pathlib import Path

from bakeoff.compare.plan import Trial
from bakeoff.parts.files import write_json
from bakeoff.train.folder import RunFolder
from bakeoff.train.records import write_recipe


def prepare_folder(trial: Trial, folder: Path) -> Path:
    """Write what the trial's process reads; a folder that was begun is left as it is."""
    run = RunFolder(folder / "run")
    if not (folder / "trial.json").exists():
        write_recipe(run, trial.recipe)
        about = {"arm": trial.arm.name, "seed": trial.seed, "measures": trial.measures, "tasks": trial.arm.tasks}
        write_json(folder / "trial.json", about)
    return folder
