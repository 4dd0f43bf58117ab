"""Sums and joins over ranks that are differentiated: what stands between ranks that work on one model together.

`f` and `g` of Shoeybi et al. (2019), arXiv:1909.08053, are `entered` and `summed`; their forms for a stream whose
tokens are shared out (Korthikanti et al. 2022, arXiv:2205.05198) are `joined_to_enter` and `summed_and_shared`. Where
ranks share out the entries of a dimension, each has its `portion`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from bakeoff.interfaces.cut import portion

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Names before torch 2.13 and since.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_reduce_scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


def entered(x: Tensor, group: ProcessGroup) -> Tensor:
    """`x` as it is, alike on all ranks; each rank adds to its gradient."""
    return paired(x, _same, lambda dy: all_sum(dy, group))


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over ranks; each rank's part of it has the gradient of the sum."""
    return paired(x, lambda value: all_sum(value, group), _same)


def summed_for_each(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over ranks, of which each rank makes something else: gradients are summed as well."""
    return paired(x, lambda value: all_sum(value, group), lambda dy: all_sum(dy, group))


def joined(x: Tensor, dim: int, length: int, group: ProcessGroup) -> Tensor:
    """All ranks' shares of `length` entries of `dim` together, of which all ranks make the same."""
    return paired(x, lambda value: all_joined(value, dim, length, group), lambda dy: own_share(dy, dim, group))


def joined_to_enter(x: Tensor, dim: int, length: int, group: ProcessGroup) -> Tensor:
    """All ranks' shares of `length` entries of `dim` together; each rank adds to their gradient."""
    return paired(x, lambda value: all_joined(value, dim, length, group), lambda dy: sum_shared(dy, dim, group))


def summed_and_shared(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """This rank's share of the sum over ranks."""
    length = x.shape[dim]
    return paired(x, lambda value: sum_shared(value, dim, group), lambda dy: all_joined(dy, dim, length, group))


def shared(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """This rank's share of what stands whole, and alike, on all ranks."""
    length = x.shape[dim]
    return paired(x, lambda value: own_share(value, dim, group), lambda dy: all_joined(dy, dim, length, group))


def paired(x: Tensor, forth: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    """`forth(x)`, whose gradient goes through `back`."""
    return _Pair.apply(x, forth, back)


def with_gradient_of(x: Tensor, factor: float) -> Tensor:
    """`x` as it is; its gradient is multiplied by `factor`."""
    return paired(x, _same, lambda dy: dy * factor)


def all_sum(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over ranks."""
    total = x.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


def all_max(x: Tensor, group: ProcessGroup) -> Tensor:
    """The largest over ranks, entry by entry."""
    largest = x.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=group)
    return largest


def own_share(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """This rank's entries of `dim`."""
    start, stop = portion(x.shape[dim], group.size(), group.rank())
    return x.narrow(dim, start, stop - start).contiguous()


def all_joined(x: Tensor, dim: int, length: int, group: ProcessGroup) -> Tensor:
    """All ranks' entries of `dim` one after the other, `length` in all."""
    ranks, most = group.size(), -(-length // group.size())
    lying = x.movedim(dim, 0)
    if len(lying) < most:
        lying = torch.cat([lying, lying.new_zeros(most - len(lying), *lying.shape[1:])])
    whole = lying.new_empty(ranks * most, *lying.shape[1:])
    _all_gather(whole, lying.contiguous(), group=group)
    if length < len(whole):
        whole = torch.cat([piece[: _held(length, ranks, r)] for r, piece in enumerate(whole.split(most))])
    return whole.movedim(0, dim).contiguous()


def sum_shared(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """This rank's entries of `dim` of the sum over ranks."""
    ranks, length = group.size(), x.shape[dim]
    most = -(-length // ranks)
    lying = x.movedim(dim, 0)
    if length < ranks * most:
        filled = lying.new_zeros(ranks, most, *lying.shape[1:])
        for r, piece in enumerate(lying.split([_held(length, ranks, r) for r in range(ranks)])):
            filled[r, : len(piece)] = piece
        lying = filled.flatten(0, 1)
    own = lying.new_empty(most, *lying.shape[1:])
    _reduce_scatter(own, lying.contiguous(), group=group)
    return own[: _held(length, ranks, group.rank())].movedim(0, dim).contiguous()


def _held(length: int, ranks: int, rank: int) -> int:
    start, stop = portion(length, ranks, rank)
    return stop - start


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


class _Pair(torch.autograd.Function):
    """One function forward, another one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return forth(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(dy), None, None
