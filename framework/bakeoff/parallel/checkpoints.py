"""Checkpoints of tensors that ranks hold pieces of: a folder that any other layout, and any number of ranks, reads.

The tensors stand there in the form of torch.distributed.checkpoint; beside them `rest.pt`, plain values, and
`manifest.json`, size and CRC-32 of each file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, distributed

from bakeoff.errors import UserError
from bakeoff.parallel.contents import METADATA, Chunk, Names, Stored, contents
from bakeoff.parallel.pieces import Piece, check_same, entire, fill_overlap, overlaps
from bakeoff.parts.files import checksum, read_sealed, stepping_aside, sync_folder, write_sealed, writing
from bakeoff.parts.tensor_files import check_plain, load_plain, save_whole, write_safetensors

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

MANIFEST, REST = "manifest.json", "rest.pt"
#: Before the names of the model's weights, in a checkpoint of a run.
MODEL = "model."

Given = TypeVar("Given")
Made = TypeVar("Made")


def write(
    tensors: Mapping[str, Piece], folder: Path, *, group: ProcessGroup | None, plain: Mapping[str, Any] | None = None
) -> None:
    """Write a checkpoint, of which a reader, or a crash, sees all or nothing; all ranks call it.

    Parameters
    ----------
    tensors : by names that are the same on each rank; what several ranks hold alike is written once.
    folder : what stood there is replaced.
    group : of the ranks; None: all of them, or this process where it is alone.
    plain : what else belongs to it, as `read_rest` gives it back; that of the first rank is kept.

    Raises `UserError` on each rank if one cannot write, or `plain` holds what could not be read back safely.
    """
    from bakeoff.parallel.storage import store  # slow to import, and only those need it who write

    partial = folder.with_name(f"{folder.name}.tmp")
    store(tensors, partial, group)

    def finish(sums: list[dict[str, list[int]]]) -> None:
        if plain is not None:
            check_plain(plain)
            save_whole(dict(plain), partial / REST)
        sums.append(_sums(partial / name for name in (METADATA, REST) if (partial / name).exists()))
        write_sealed(partial / MANIFEST, {"files": {name: one for each in sums for name, one in each.items()}})
        with writing(folder), stepping_aside(folder):
            sync_folder(partial)
            os.replace(partial, folder)
            sync_folder(folder.parent)

    rank, _ = _place(group)
    together(group, lambda: _sums(partial.glob(f"__{rank}_*")), finish)


def together(group: ProcessGroup | None, each: Callable[[], Given], first: Callable[[list[Given]], Made]) -> Made:
    """`each` on every rank, `first` of what they gave on the first; its answer. An error anywhere is raised on all."""
    given = _attempt(each)
    if distributed.is_initialized():
        rank, ranks = _place(group)
        every: list[Any] = [None] * ranks
        distributed.all_gather_object(every, given, group)
    else:
        rank, every = 0, [given]
    failed = next((one for one in every if isinstance(one, Exception)), None)
    if failed is not None:
        raise failed
    answer = [_attempt(lambda: first(every)) if rank == 0 else None]
    if distributed.is_initialized():
        distributed.broadcast_object_list(answer, group=group, group_src=0)
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]  # type: ignore[return-value]


def _attempt(call: Callable[[], Any]) -> Any:
    """What a call gives, or its error."""
    try:
        return call()
    except Exception as error:
        return error


def _place(group: ProcessGroup | None) -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(group), distributed.get_world_size(group)


def _sums(files: Iterable[Path]) -> dict[str, list[int]]:
    """Size and CRC-32 of files by name."""
    return {path.name: [path.stat().st_size, checksum(path)] for path in files}


def read(folder: Path, wanted: Mapping[str, Piece], *, group: ProcessGroup | None = None, within: Names = "") -> None:
    """Fill each piece from a checkpoint of any layout, of those of its tensors whose names begin with `within`.

    All ranks call it. Raises the same `UserError` on each if the checkpoint is damaged, or its tensors are not those
    that are wanted: the names that are missing or left over, and both shapes or types of the others.
    """
    rank, ranks = _place(group)

    def fill() -> None:
        _refuse_damage(folder, _fault(folder, rank, ranks))
        held = contents(folder, within)
        check_same(held, wanted, str(folder))
        _fill(folder, held, wanted)

    together(group, fill, lambda _: None)


def read_whole(folder: Path, within: Names = "") -> dict[str, Tensor]:
    """All tensors of a checkpoint, or those whose names begin with `within`, whole and on the CPU; needs no ranks."""
    _refuse_damage(folder, damage(folder))
    held = contents(folder, within)
    whole = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in held.items()}
    _fill(folder, held, {name: entire(tensor) for name, tensor in whole.items()})
    return whole


def read_rest(folder: Path) -> dict[str, Any]:
    """The plain values of a checkpoint; `UserError` if it has none that can be read."""
    return load_plain(folder / REST)


def is_checkpoint(folder: Path) -> bool:
    """Whether `write` made a folder."""
    return (folder / MANIFEST).is_file()


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint by its manifest; None if nothing is."""
    return _fault(folder, 0, 1)


def _fault(folder: Path, rank: int, ranks: int) -> str | None:
    """`damage`, where one of several ranks reads only its share of the files."""
    try:
        files = sorted(read_sealed(folder / MANIFEST)["files"].items())
        for number, (name, (size, value)) in enumerate(files):
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes and not {size}"
            if number % ranks == rank and checksum(folder / name) != value:
                return f"the checksum of {name} is wrong"
        contents(folder)
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read ({error.strerror})"
    except UserError as error:
        return str(error)
    except (KeyError, TypeError, ValueError, AttributeError):
        return f"{MANIFEST} is none"
    return None


def _refuse_damage(folder: Path, fault: str | None) -> None:
    if fault is not None:
        raise UserError(f"{folder} is damaged: {fault}")


def _fill(folder: Path, held: Mapping[str, Stored], wanted: Mapping[str, Piece]) -> None:
    """Fill pieces, reading each file once from its beginning to its end, and only what is needed."""
    needed = [(chunk, name) for name in wanted for chunk in held[name].chunks if _meet(chunk, wanted[name])]
    needed.sort(key=lambda one: (one[0].file, one[0].offset))
    for name, chunks in groupby(needed, key=lambda one: one[0].file):
        try:
            with open(folder / name, "rb") as file:
                for chunk, tensor in chunks:
                    file.seek(chunk.offset)
                    values = _values(file.read(chunk.length), chunk, held[tensor])
                    fill_overlap(wanted[tensor], values, chunk.start)
        except OSError as error:
            raise UserError(f"{folder / name} cannot be read: {error.strerror}") from error
        except Exception as error:
            raise UserError(f"{folder / name} cannot be read: {str(error).strip().splitlines()[0]}") from error


def _meet(chunk: Chunk, piece: Piece) -> bool:
    return any(True for _ in overlaps(piece, chunk.start, chunk.size))


def _values(entry: bytes, chunk: Chunk, held: Stored) -> Tensor:
    """The tensor of an entry, of which nothing is executed; `ValueError` if it is another than was said."""
    tensor = torch.load(io.BytesIO(entry), map_location="cpu", weights_only=True)
    if not isinstance(tensor, Tensor) or tensor.shape != chunk.size or tensor.dtype != held.dtype:
        raise ValueError("an entry is not the tensor that the metadata speak of")
    return tensor


def to_safetensors(folder: Path, path: Path) -> None:
    """Write the model's weights of a checkpoint as one plain safetensors file, under the names that the model has."""
    weights = read_whole(folder, MODEL)
    write_safetensors({name.removeprefix(MODEL): tensor for name, tensor in weights.items()}, path)
