"""Runs of several ranks: Lightning starts the others by the command line, so a command must be running."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from bakeoff.errors import UserError
from bakeoff.recipe import Recipe
from bakeoff.train.curve import read_curve
from bakeoff.train.folder import RunFolder
from bakeoff.train.progress import Progress
from bakeoff.train.records import write_recipe

#: Set by the `fit` command for its process and those that it starts.
COMMAND = "BAKEOFF_FIT_COMMAND"


def launched_by_command() -> bool:
    """Whether this process is a `bakeoff fit` command."""
    return COMMAND in os.environ


def train_in_command(recipe: Recipe, place: RunFolder, progress: Progress) -> None:
    """Train through `bakeoff fit` in a process of its own; `UserError` with its last lines if it fails."""
    if not place.recipe.exists():
        write_recipe(place, recipe)
    words = [sys.executable, "-m", "bakeoff", "fit", str(place.recipe), "--folder", str(place.path)]
    log = place.path / "log.txt"
    with open(log, "ab") as file:
        output = None if progress is True else file
        process = subprocess.Popen(words, stdout=output, stderr=output)
        try:
            _wait(process, place, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise UserError(f"training in {place.path} ended with exit code {process.returncode}: " + "\n".join(lines[-5:]))


def _wait(process: subprocess.Popen[bytes], place: RunFolder, progress: Progress) -> None:
    shown = None
    while process.poll() is None:
        time.sleep(0.25)
        rows = read_curve(place.curve) if callable(progress) else []
        if callable(progress) and rows and rows[-1] != shown:
            shown = rows[-1]
            progress({"phase": "training", **shown})
