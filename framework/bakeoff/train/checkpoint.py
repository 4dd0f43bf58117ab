"""Checkpoints: written whole or not at all, of plain values only, at optimizer steps; the newest sound one is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO

from bakeoff.errors import UserError
from bakeoff.train.saving import RUN, damage, load_checkpoint, save_whole, steps

_PLAIN = (str, bytes, int, float, bool, type(None), torch.Tensor, torch.dtype, torch.Size)


class WholeFiles(CheckpointIO):
    """Writes to a name beside the final one, forces it to disk, renames; reads plain values only.

    Parameters
    ----------
    identity : of the run; a checkpoint of another is refused.
    """

    def __init__(self, *, identity: str):
        self.identity = identity

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint; `UserError` if it holds what could not be read back safely, or if the disk is full."""
        check_plain(checkpoint)
        save_whole({**checkpoint, RUN: self.identity}, Path(path))

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint; nothing in it is executed."""
        return load_checkpoint(Path(path), self.identity)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def check_plain(value: Any, place: str = "checkpoint") -> None:
    """Raise `UserError` naming the place of a value that `torch.load(weights_only=True)` would refuse."""
    if isinstance(value, _PLAIN):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_plain(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple, set)):
        for i, item in enumerate(value):
            check_plain(item, f"{place}[{i}]")
    else:
        raise UserError(
            f"{place} is a {type(value).__module__}.{type(value).__qualname__}: a checkpoint holds tensors, numbers, "
            "texts, lists and dicts only, so that opening it runs nothing; keep the state of callbacks plain"
        )


class Checkpoints:
    """The checkpoints of one run: `step-N.ckpt` in a folder.

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
            trainer.save_checkpoint(self.folder / f"step-{step}.ckpt")
            self.latest = step
            if trainer.is_global_zero:
                for _, path in steps(self.folder)[: -self.keep]:
                    path.unlink(missing_ok=True)

    def newest(self, say: Callable[[str], None]) -> tuple[int, Path] | None:
        """Step and path of the newest sound checkpoint; `say` names each damaged one that is passed over."""
        for partial in self.folder.glob("*.tmp"):
            partial.unlink(missing_ok=True)
        for step, path in reversed(steps(self.folder)):
            fault = damage(path)
            if fault is None:
                self.latest = step
                return step, path
            say(f"{path} is damaged: {fault}; going back to the checkpoint before it")
            if path.is_file():
                path.unlink()
        return None
