"""Whether two sets of named weights agree."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def disagreements(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> list[str]:
    """A line for each name that only one side has or that has another shape there, at most eight and then a count;
    or, where there are none, for each two names that are one tensor in ours and differ in theirs."""
    found = [
        f"{name}: {_shape(theirs.get(name))} there, {_shape(ours.get(name))} here"
        for name in {**ours, **theirs}
        if _shape(theirs.get(name)) != _shape(ours.get(name))
    ]
    found = found or _shared(theirs, ours)
    return found if len(found) <= 8 else [*found[:8], f"and {len(found) - 8} more"]


def _shared(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> list[str]:
    first: dict[tuple[int, int], str] = {}
    pairs = [(first.setdefault(_place(tensor), name), name) for name, tensor in ours.items() if tensor.numel()]
    return [
        f"{name}: differs from {other} there, is the same weight here"
        for other, name in pairs
        if not torch.equal(theirs[other], theirs[name])
    ]


def _place(tensor: Tensor) -> tuple[int, int]:
    """Equal for tensors that begin at the same memory, or would if they had any."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def _shape(tensor: Tensor | None) -> str:
    return "none" if tensor is None else str(tuple(tensor.shape))
