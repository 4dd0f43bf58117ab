"""Checkpoints of a run, of one file or of a folder that several ranks wrote: which there are, and what they hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError
from bakeoff.parallel import checkpoints
from bakeoff.parts.tensor_files import file_damage, load_plain
from bakeoff.train.optimizer_state import PREFIX, by_index

#: Key under which a checkpoint holds the id of its run.
RUN = "run"
#: Key under which the rest of a folder holds what `by_name` gave of the optimizer, besides its tensors.
OPTIMIZER = "optimizer"
#: What a folder holds as tensors of their own.
_TENSORS = ("state_dict", "optimizer_states")
_NAME = re.compile(r"step-(\d+)\.ckpt")


def load_checkpoint(path: Path, identity: str | None) -> dict[str, Any]:
    """A checkpoint, of the run that bears this id and of the step that its name says; else a `UserError`.

    That of a folder is what the file would hold: all tensors whole and on the CPU.
    """
    if not path.is_dir():
        return _checked(load_plain(path), path, identity, _TENSORS[:1])
    rest = load_rest(path, identity)
    held = checkpoints.read_whole(path)
    state = {name: tensor for name, tensor in held.items() if name.startswith(PREFIX)}
    weights = {name: tensor for name, tensor in held.items() if name not in state}
    try:
        optimizer = by_index(state, rest.pop(OPTIMIZER))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged: the optimizer's state does not hold together ({error})") from error
    return {**rest, "state_dict": weights, "optimizer_states": [optimizer]}


def rest_of(checkpoint: Mapping[str, Any], optimizer: Mapping[str, Any], identity: str) -> dict[str, Any]:
    """What a folder holds of a checkpoint besides its tensors; `optimizer` is the plain part of `by_name`."""
    kept = {key: value for key, value in checkpoint.items() if key not in _TENSORS}
    return {**kept, OPTIMIZER: dict(optimizer), RUN: identity}


def load_rest(path: Path, identity: str | None) -> dict[str, Any]:
    """What `rest_of` gave to a folder; `UserError` as `load_checkpoint` raises it."""
    return _checked(checkpoints.read_rest(path), path, identity, (OPTIMIZER,))


def _checked(held: Any, path: Path, identity: str | None, keys: tuple[str, ...]) -> dict[str, Any]:
    step = int(path.stem.rpartition("-")[2])
    if not isinstance(held, dict) or any(key not in held for key in keys) or held.get(RUN) != identity:
        raise UserError(f"{path} is no checkpoint of this run")
    if held.get("global_step") != step:
        raise UserError(f"{path} holds step {held.get('global_step')} and not {step}")
    return held


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, by its own checksums; None if nothing is."""
    return checkpoints.damage(path) if path.is_dir() else file_damage(path)


def steps(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of all checkpoints of a folder, oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.ckpt")]
    return sorted((int(match.group(1)), path) for match, path in found if match)
