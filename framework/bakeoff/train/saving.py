"""Files of tensors: written whole or not at all, checked before they are read, read without running anything."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from bakeoff.errors import UserError
from bakeoff.parts.files import replacing, sync_folder, writing

#: Key under which a checkpoint holds the id of its run.
RUN = "run"
_NAME = re.compile(r"step-(\d+)\.ckpt")


def save_whole(content: Any, path: Path) -> None:
    """`torch.save` such that a reader, or a crash, sees all of the file or none of it."""
    with replacing(path, path.with_name(f"{path.name}.tmp"), _size(content)) as file:
        _save(content, file)
    with writing(path):
        sync_folder(path.parent)


def _save(content: Any, file: BinaryIO) -> None:
    """`torch.save`, whose own error hides that of the file."""
    try:
        torch.save(content, file)
    except RuntimeError as error:
        cause = error.__cause__ or error.__context__
        raise (cause if isinstance(cause, OSError) else OSError(str(error).splitlines()[0])) from error


def _size(content: Any) -> int:
    """Bytes of all tensors in a nest, which are nearly all that its file takes."""
    if isinstance(content, torch.Tensor):
        return content.nbytes
    items = content.values() if isinstance(content, Mapping) else content if isinstance(content, (list, tuple)) else ()
    return sum(map(_size, items))


def load_plain(path: Path) -> Any:
    """What `save_whole` wrote, on the CPU; `UserError` naming the file and the fault if it is damaged."""
    fault = damage(path)
    if fault is not None:
        raise UserError(f"{path} is damaged: {fault}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{path} cannot be read: {str(error).strip().splitlines()[0]}") from error


def load_checkpoint(path: Path, identity: str | None) -> dict[str, Any]:
    """A checkpoint, of the run that bears this id and of the step that its name says; else a `UserError`."""
    held = load_plain(path)
    step = int(path.stem.rpartition("-")[2])
    if not isinstance(held, dict) or "state_dict" not in held or held.get(RUN) != identity:
        raise UserError(f"{path} is no checkpoint of this run")
    if held.get("global_step") != step:
        raise UserError(f"{path} holds step {held.get('global_step')} and not {step}")
    return held


def damage(path: Path) -> str | None:
    """What is wrong with a file of `torch.save`, by its own checksums; None if nothing is."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except FileNotFoundError:
        return "it is not there"
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        return f"cut short or overwritten ({error})"
    return None if bad is None else f"the checksum of its entry {bad} is wrong"


def steps(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of all checkpoints of a folder, oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.ckpt")]
    return sorted((int(match.group(1)), path) for match, path in found if match)
