"""Run folders: `runs/<recipe>/<time>-<hash>`, and the files in them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError
from bakeoff.parts.files import ASIDE, write_whole
from bakeoff.recipe.reading import as_yaml

#: Set by the first rank, so that the others, started by it with the same command line, use its folder.
SHARED_FOLDER = "BAKEOFF_RUN_FOLDER"


class RunFolder:
    """Where the files of one run stand."""

    def __init__(self, path: Path):
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.meta = path / "meta.json"
        self.curve = path / "curve.csv"
        self.layers = path / "layers.csv"
        self.means = path / "means.csv"
        self.summary = path / "summary.json"
        self.weights = path / "model.pt"
        self.tokenizer = path / "tokenizer"
        self.checkpoints = path / "checkpoints"
        self.imports = path / "imports"

    def holds_work(self) -> bool:
        """Whether something was trained here: there is a checkpoint or a summary."""
        kept = (self.checkpoints.glob(f"step-*.ckpt{end}") for end in ("", ASIDE))
        return self.summary.exists() or any(map(any, kept))

    def make(self) -> RunFolder:
        """Create the folders; returns itself."""
        try:
            for folder in (self.path, self.tokenizer, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the run's folder {self.path} cannot be made: {error.strerror}") from error
        return self

    @contextlib.contextmanager
    def alone(self, say: Callable[[str], None]) -> Iterator[bool]:
        """Hold the folder against other processes, which the system ends with this one; gives whether it had to wait.

        `say` is told who waits for what.
        """
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            waited = False
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another process trains in {self.path}; waiting until it ends")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                waited = True
            yield waited
        finally:
            os.close(descriptor)


def choose_folder(name: str, digest: str) -> Path:
    """A folder that is not there yet, or the one that the first rank of this machine has chosen."""
    shared = os.environ.get(SHARED_FOLDER)
    if shared:
        return Path(shared)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / name / f"{stamp}-{digest}"
    number, path = 1, base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    """Write a mapping as YAML, in its own order."""
    write_whole(path, as_yaml(values).encode())
