"""What a folder of torch.distributed.checkpoint holds, read without running anything that it carries."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bakeoff.errors import UserError

METADATA = ".metadata"
_FILE = re.compile(r"__\d+_\d+\.distcp")
_HERE = "torch.distributed.checkpoint."
#: All that the metadata of a checkpoint names, besides types of numbers.
_NAMED = {
    *((f"{_HERE}metadata", name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
    *((f"{_HERE}metadata", f"{name}StorageMetadata") for name in ("Tensor", "Chunk", "Bytes")),
    (f"{_HERE}metadata", "TensorProperties"),
    (f"{_HERE}filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"),
}


#: How names begin: in one way, or in one of several.
Names = str | tuple[str, ...]


@dataclass(frozen=True)
class Chunk:
    """A block of a tensor, with the bytes of a file that hold it."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint."""

    shape: torch.Size
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]


def contents(folder: Path, within: Names = "") -> dict[str, Stored]:
    """The tensors of a checkpoint whose names begin with `within`; `UserError` if that cannot be read, or is no such.

    Nothing is imported or called: where the file names a class, a stand-in takes what belongs to it, and where it names
    anything that a checkpoint does not consist of, it is refused.
    """
    try:
        with open(folder / METADATA, "rb") as file:
            held = _Metadata(file).load().fields
        files = {(at.fields["fqn"], tuple(at.fields["offset"])): info for at, info in held["storage_data"].items()}
        named = held["state_dict_metadata"].items()
        return {name: _stored(name, one, files) for name, one in named if name.startswith(within)}
    except FileNotFoundError:
        raise UserError(f"{folder} is damaged: {METADATA} is not there") from None
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"{folder / METADATA} cannot be read: {type(error).__name__}: {reason}") from error


class _StandIn:
    """Takes the place of an object, and keeps its state as `fields`."""

    fields: Any

    def __init__(self, *arguments: Any):
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.fields = state


class _Metadata(pickle.Unpickler):
    """Knows what a checkpoint's metadata consist of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in, a type of numbers, or `UnpicklingError`."""
        if (module, name) in _NAMED:
            return type(name, (_StandIn,), {})
        if (module, name) == ("torch", "Size"):
            return tuple
        kind = getattr(torch, name, None) if module == "torch" else None
        if isinstance(kind, torch.dtype):
            return kind
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint consists of")


def _stored(name: str, held: _StandIn, files: Mapping[tuple[str, tuple[int, ...]], _StandIn]) -> Stored:
    """One tensor, or `ValueError` naming it if its description does not hold together."""
    fields = held.fields
    shape, dtype = _numbers(fields["size"]), fields["properties"].fields[0]
    chunks = []
    for chunk in fields["chunks"]:
        start, size = _numbers(chunk.fields["offsets"]), _numbers(chunk.fields["sizes"])
        at = files[name, start].fields
        file, place = at["relative_path"], _numbers((at["offset"], at["length"]))
        inside = all(a + n <= whole for a, n, whole in zip(start, size, shape, strict=True))
        if not inside or not _FILE.fullmatch(file) or at.get("transform_descriptors"):
            raise ValueError(f"the description of {name} does not hold together")
        chunks.append(Chunk(start, size, file, *place))
    if not isinstance(dtype, torch.dtype) or sum(math.prod(chunk.size) for chunk in chunks) != math.prod(shape):
        raise ValueError(f"the description of {name} does not hold together")
    return Stored(torch.Size(shape), dtype, tuple(chunks))


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    numbers = tuple(values)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{numbers} are no places or sizes")
    return numbers
