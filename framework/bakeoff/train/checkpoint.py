"""Checkpoints: written whole or not at all, of plain values only, at optimizer steps; the newest sound one is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO

from bakeoff.errors import UserError
from bakeoff.parts.files import remove, settle, stepping_aside
from bakeoff.parts.tensor_files import check_plain, save_whole
from bakeoff.train.saving import RUN, damage, load_checkpoint, steps


class WholeFiles(CheckpointIO):
    """Writes to a name beside the final one, forces it to disk, renames; reads plain values only.

    Reads the folders of several ranks as well, as the file that would hold the same.

    Parameters
    ----------
    identity : of the run; a checkpoint of another is refused.
    """

    def __init__(self, *, identity: str):
        self.identity = identity

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint, then call `storage_options`, if given.

        Raises `UserError` if it holds what could not be read back safely, or if the disk is full.
        """
        check_plain(checkpoint)
        place = Path(path)
        with stepping_aside(place) if place.is_dir() else nullcontext():
            save_whole({**checkpoint, RUN: self.identity}, place)
        if storage_options is not None:
            storage_options()

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint; nothing in it is executed."""
        return load_checkpoint(Path(path), self.identity)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        remove(Path(path))


class Checkpoints:
    """The checkpoints of one run: `step-N.ckpt` in a folder, each a file, or a folder where several ranks wrote it.

    Parameters
    ----------
    every : optimizer steps between two; None: only at the end.
    keep : how many of the newest stay.
    """

    def __init__(self, folder: Path, *, every: int | None, keep: int):
        if every is not None and every < 1:
            raise UserError(f"checkpoint.every_steps is {every}; it must be at least 1, or null for none on the way")
        if keep < 1:
            raise UserError(f"checkpoint.keep is {keep}; it must be at least 1")
        self.folder, self.every, self.keep = folder, every, keep
        self.latest: int | None = None

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after optimizer step `step`."""
        return self.every is not None and step % self.every == 0

    def save(self, trainer: pl.Trainer, step: int) -> None:
        """Write the run's state after optimizer step `step`, unless that stands there; all ranks call it."""
        if self.latest != step:
            trainer.save_checkpoint(self.folder / f"step-{step}.ckpt", storage_options=self.prune)
            self.latest = step

    def prune(self) -> None:
        """Delete all but the newest; the first rank calls it when a checkpoint stands."""
        for _, path in steps(self.folder)[: -self.keep]:
            remove(path)

    def newest(self, say: Callable[[str], None]) -> tuple[int, Path] | None:
        """Step and path of the newest sound checkpoint; `say` names each damaged one that is passed over."""
        settle(self.folder)
        for step, path in reversed(steps(self.folder)):
            fault = damage(path)
            if fault is None:
                self.latest = step
                return step, path
            say(f"{path} is damaged: {fault}; going back to the checkpoint before it")
            remove(path)
        return None
