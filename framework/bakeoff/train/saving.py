"""Files of tensors: written whole or not at all, checked before they are read, read without running anything."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from bakeoff.errors import UserError
from bakeoff.parts.files import sync_folder

_NAME = re.compile(r"step-(\d+)\.ckpt")


def save_whole(content: Any, path: Path) -> None:
    """`torch.save` such that a reader, or a crash, sees all of the file or none of it."""
    partial = path.with_name(f"{path.name}.tmp")
    try:
        with open(partial, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def load_plain(path: Path) -> Any:
    """What `save_whole` wrote, on the CPU; `UserError` naming the file and the fault if it is damaged."""
    fault = damage(path)
    if fault is not None:
        raise UserError(f"{path} is damaged: {fault}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{path} cannot be read: {str(error).strip().splitlines()[0]}") from error


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
