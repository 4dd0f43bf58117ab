"""Which part of a whole tensor a rank holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bakeoff.errors import UserError

Place = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A block of a tensor: where it begins in the whole one, where in the rank's own, and its size; one number for each
    dimension."""

    whole: Place
    local: Place
    size: Place


@dataclass(frozen=True, eq=False)
class Piece:
    """What a rank holds of a tensor.

    Attributes
    ----------
    whole : shape of the whole tensor.
    boxes : blocks of it that stand in `local`; none where the rank holds nothing of it.
    local : the rank's own tensor; its memory is read and written.
    """

    whole: torch.Size
    boxes: tuple[Box, ...]
    local: Tensor

    def view(self, box: Box) -> Tensor:
        """The part of the rank's own tensor that a box speaks of."""
        return block(self.local, box.local, box.size)

    def alike(self, tensor: Tensor) -> Piece:
        """Another tensor, or the rank's part of a `DTensor`, that is shared out as this one is."""
        return Piece(self.whole, self.boxes, local_of(tensor))


class Held(Protocol):
    """A whole tensor, or what is known of one."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...


def local_of(tensor: Tensor) -> Tensor:
    """The rank's own part of a `DTensor`, or the tensor."""
    to_local = getattr(tensor, "to_local", None)  # of a class that is slow to import
    return (tensor if to_local is None else to_local()).detach()


def entire(tensor: Tensor) -> Piece:
    """A tensor that the rank holds whole."""
    zeros = (0,) * tensor.ndim
    return Piece(tensor.shape, (Box(zeros, zeros, tuple(tensor.shape)),), local_of(tensor))


def cut(whole: Iterable[int], dim: int, ranges: Iterable[tuple[int, int]]) -> tuple[Box, ...]:
    """The boxes of ranges (start, stop) along one dimension, which lie one after the other in the rank's own tensor.

    Raises `ValueError` for a range that is not within the dimension.
    """
    shape, filled, boxes = tuple(whole), 0, []
    for start, stop in ranges:
        if not 0 <= start <= stop <= shape[dim]:
            raise ValueError(f"the range {start} to {stop} is not within dimension {dim} of {shape}")
        at, local = [0] * len(shape), [0] * len(shape)
        at[dim], local[dim] = start, filled
        size = (*shape[:dim], stop - start, *shape[dim + 1 :])
        if math.prod(size):
            boxes.append(Box(tuple(at), tuple(local), size))
        filled += stop - start
    return tuple(boxes)


def chunked(boxes: Iterable[Box], start: int, stop: int) -> tuple[Box, ...]:
    """What stands in the rows `start` to `stop` of a tensor that consists of `boxes`, as boxes of these rows alone."""
    found = []
    for box in boxes:
        first, last = max(start, box.local[0]), min(stop, box.local[0] + box.size[0])
        if first < last:
            whole = (box.whole[0] + first - box.local[0], *box.whole[1:])
            found.append(Box(whole, (first - start, *box.local[1:]), (last - first, *box.size[1:])))
    return tuple(found)


def block(tensor: Tensor, start: Place, size: Place) -> Tensor:
    """A block of a tensor, of the same memory."""
    for dim, (first, length) in enumerate(zip(start, size, strict=True)):
        tensor = tensor.narrow(dim, first, length)
    return tensor


@torch.no_grad()
def fill_overlap(piece: Piece, tensor: Tensor, start: Place) -> int:
    """Copy into a piece what it shares with a block of the whole tensor that begins at `start`; returns how much."""
    copied = 0
    for box, low, size in overlaps(piece, start, tuple(tensor.shape)):
        into = tuple(own + a - b for own, a, b in zip(box.local, low, box.whole, strict=True))
        out_of = tuple(a - b for a, b in zip(low, start, strict=True))
        block(piece.local, into, size).copy_(block(tensor, out_of, size))
        copied += math.prod(size)
    return copied


def overlaps(piece: Piece, start: Place, shape: Place) -> Iterator[tuple[Box, Place, Place]]:
    """Each box that a block of the whole tensor meets, with where in the whole they do, and the size."""
    for box in piece.boxes:
        low = tuple(map(max, start, box.whole))
        ends = zip(start, shape, box.whole, box.size, strict=True)
        size = tuple(min(a + n, b + m) - first for first, (a, n, b, m) in zip(low, ends, strict=True))
        if all(length > 0 for length in size):
            yield box, low, size


def fill_from(whole: Mapping[str, Tensor], wanted: Mapping[str, Piece]) -> None:
    """Fill each piece from the whole tensor of its name; `UserError` if the two have not the same names and shapes."""
    check_same(whole, wanted, "the checkpoint")
    for name, piece in wanted.items():
        fill_overlap(piece, whole[name], (0,) * len(piece.whole))


def check_same(held: Mapping[str, Held], wanted: Mapping[str, Piece], where: str) -> None:
    """Raise `UserError` with a line for each name that only one side has, or has in another shape or type."""
    there = {name: _described(one.shape, one.dtype) for name, one in held.items()}
    here = {name: _described(one.whole, one.local.dtype) for name, one in wanted.items()}
    told = [
        f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]
    if told:
        more = [f"and {len(told) - 8} more"] if len(told) > 8 else []
        raise UserError("\n  ".join([f"{where} holds other tensors than the run has:", *told[:8], *more]))


def _described(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"
