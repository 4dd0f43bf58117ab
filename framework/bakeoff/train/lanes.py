"""The states of all lanes in a checkpoint: whatever the ranks, one row a lane, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from typing import Any

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.state import map_state, tensors
from bakeoff.model.carrying import Carried, begin, odd_values

#: Under which a checkpoint holds them.
LANES = "lanes"


def gathered(carried: Carried, ranks: int) -> list[Tensor]:
    """Each tensor of the states as (lanes, …) on the CPU, complete on the first rank; all ranks call it together."""
    states = [list(tensors(carried.states[number])) for number in sorted(carried.states)]
    mine = (torch.stack(leaf) for leaf in zip(*states, strict=True))  # (accumulation, micro, …) each
    return [_all_ranks(leaf, ranks) for leaf in mine]


def _all_ranks(leaf: Tensor, ranks: int) -> Tensor:
    """(accumulation, micro, …) of each rank -> (accumulation * ranks * micro, …) on the first one."""
    parts = [leaf]
    if ranks > 1 and leaf.numel():
        main = torch.distributed.get_rank() == 0
        parts = [torch.empty_like(leaf) for _ in range(ranks)] if main else []
        torch.distributed.gather(leaf.contiguous(), parts or None)
        parts = parts or [leaf]
    elif ranks > 1:
        parts = [leaf] * ranks
    return torch.stack([part.cpu() for part in parts], 1).flatten(0, 2)


def restored(
    held: Any, model: Any, *, lanes: int, accumulation: int, ranks: int, rank: int, device: torch.device
) -> Carried:
    """The states of one rank's lanes from what a checkpoint holds of all.

    Raises `UserError` where it holds none, others than the model's, or such as are not finite.
    """
    carried, micro = Carried(model), lanes // (accumulation * ranks)
    empty = begin(model, micro)
    _check(held, list(tensors(empty)), lanes)
    shares = [leaf.unflatten(0, (accumulation, ranks, micro))[:, rank] for leaf in held]
    for number in range(accumulation):
        state = _filled(empty, [share[number].clone().to(device) for share in shares])
        state.past.longest = int(state.past.length.max())
        carried.states[number] = state
    return carried


def _filled(nest: Any, leaves: list[Tensor]) -> Any:
    """The nest with other tensors, in order."""
    given = iter(leaves)
    return map_state(lambda _: next(given), nest)


def _check(held: Any, like: Items[Tensor], lanes: int) -> None:
    fault = None
    if not isinstance(held, list) or not all(isinstance(leaf, Tensor) for leaf in held):
        fault = "none"
    elif len(held) != len(like):
        fault = f"{len(held)} tensors, where the model's state has {len(like)}"
    else:
        for number, (leaf, one) in enumerate(zip(held, like, strict=True)):
            wanted = (lanes, *one.shape[1:])
            if tuple(leaf.shape) != wanted or leaf.dtype != one.dtype:
                fault = f"tensor {number} as {tuple(leaf.shape)} {leaf.dtype}, where it is {wanted} {one.dtype}"
        count = math.nan if fault else float(odd_values(held))
        if count > 0:
            fault = f"{count:.0f} values that are no finite numbers"
    if fault is not None:
        raise UserError(f"the checkpoint's states of the {lanes} lanes cannot be continued (trainer.stateful): {fault}")
