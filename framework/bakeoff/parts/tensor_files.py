"""Files of tensors: written whole or not at all, checked before they are read, read without running anything."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.parts.files import replacing, sync_folder, writing

_PLAIN = (str, bytes, int, float, bool, type(None), torch.Tensor, torch.dtype, torch.Size)


def save_whole(content: Any, path: Path) -> None:
    """`torch.save` such that a reader, or a crash, sees all of the file or none of it."""
    with replacing(path, path.with_name(f"{path.name}.tmp"), _size(content)) as file, disk_errors():
        torch.save(content, file)
    with writing(path):
        sync_folder(path.parent)


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """The error of `torch.save`, which hides that of its file, becomes the `OSError` behind it."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__cause__ or error.__context__
        raise (cause if isinstance(cause, OSError) else OSError(str(error).splitlines()[0])) from error


def _size(content: Any) -> int:
    """Bytes of all tensors in a nest, which are nearly all that its file takes."""
    if isinstance(content, torch.Tensor):
        return content.nbytes
    items = content.values() if isinstance(content, Mapping) else content if isinstance(content, (list, tuple)) else ()
    return sum(map(_size, items))


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


def load_plain(path: Path) -> Any:
    """What `save_whole` wrote, on the CPU; `UserError` naming the file and the fault if it is damaged."""
    fault = file_damage(path)
    if fault is not None:
        raise UserError(f"{path} is damaged: {fault}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{path} cannot be read: {str(error).strip().splitlines()[0]}") from error


def file_damage(path: Path) -> str | None:
    """What is wrong with a file of `torch.save`, by its own checksums; None if nothing is."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except FileNotFoundError:
        return "it is not there"
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        return f"cut short or overwritten ({error})"
    return None if bad is None else f"the checksum of its entry {bad} is wrong"


def write_safetensors(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write named weights, no two of one memory, as a safetensors file, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, path.with_name(f"{path.name}.tmp"), _size(weights)) as file:
        try:
            save_file(dict(weights), file.name, metadata={"format": "pt"})
        except SafetensorError as error:  # hides that of the file
            raise OSError(str(error)) from error
    with writing(path):
        sync_folder(path.parent)
