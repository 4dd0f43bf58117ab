"""Rows between the ranks that route them and the ranks that hold their experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from bakeoff_moe.dispatch import Order, gather, sort_by_expert
from bakeoff_moe.grouped_product import Groups

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


def exchange(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """(sum of `sent`, D) -> (sum of `received`, D): the first `sent[0]` rows go to rank 0 of the group, and so on.

    What comes stands in the order of the ranks that it comes from. All ranks of the group call it, those without rows
    too, forward and backward; gradients go back to where the rows came from.
    """
    return _Exchange.apply(rows, sent, received, group)


def by_owners(
    rows: Tensor,
    groups: Groups,
    ranks: DeviceMesh,
    compute: Callable[[Tensor, Groups], Tensor],
    *,
    on_host: bool,
) -> Tensor:
    """(M, D) sorted by expert, each of E experts a group -> (M, D): every row computed by the rank that has its expert.

    Rank p of P has the experts from p E / P on. `compute` is called once on every rank, with the rows of all ranks that
    came for its own experts, sorted by expert, in each by rank; `on_host`: it wants their counts in plain numbers.
    How many rows go where is read on the host, once, whatever `on_host` says.
    """
    group, n = ranks.get_group(), ranks.size()
    leaving = groups.ends.diff(prepend=groups.ends.new_zeros(1))
    coming = torch.empty_like(leaving)
    distributed.all_to_all_single(coming, leaving, group=group)
    sent, received = torch.stack([leaving, coming]).view(2, n, -1).sum(-1).tolist()
    assert len(rows) == sum(sent)
    there = exchange(rows, sent, received, group)
    here = len(coming) // n
    owners = torch.arange(here, device=rows.device).repeat(n).repeat_interleave(coming, output_size=len(there))
    order = sort_by_expert(owners[:, None], here, on_host=on_host)
    ys = compute(gather(there, order), order.groups)
    return exchange(gather(ys, _inverse(order)), received, sent, group)


def _inverse(order: Order) -> Order:
    """The order that undoes that of rows with one choice each, all taken."""
    return order._replace(tokens=order.places[:, 0], places=order.tokens[:, None])


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(dy, ctx.received, ctx.sent, ctx.group), None, None, None


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    came = rows.new_empty(sum(received), *rows.shape[1:])
    distributed.all_to_all_single(came, rows.contiguous(), received, sent, group=group)
    return came
