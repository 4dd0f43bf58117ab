"""Whether two sets of named weights agree."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def disagreements(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> list[str]:
    """A line for each name that only one side has, or that has another shape there; at most eight, then a count."""
    found = [
        f"{name}: {_shape(theirs.get(name))} there, {_shape(ours.get(name))} here"
        for name in {**ours, **theirs}
        if _shape(theirs.get(name)) != _shape(ours.get(name))
    ]
    return found if len(found) <= 8 else [*found[:8], f"and {len(found) - 8} more"]


def _shape(tensor: Tensor | None) -> str:
    return "none" if tensor is None else str(tuple(tensor.shape))
