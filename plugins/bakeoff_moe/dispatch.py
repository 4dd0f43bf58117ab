"""Tokens to the experts that they chose, and the experts' outputs back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff_moe.grouped_product import Groups
from bakeoff_moe.load import counted


class Order(NamedTuple):
    """Pairs (token, expert), sorted by expert, in each expert by token.

    Attributes
    ----------
    tokens : (M,) long, the token of each sorted pair; choices not taken come last.
    places : (N, k) long, where each choice of a token stands among them.
    groups : which pairs are whose.
    """

    tokens: Tensor
    places: Tensor
    groups: Groups


def sort_by_expert(experts: Tensor, n_experts: int, *, on_host: bool, compact: bool = False) -> Order:
    """(N, k) choices, E for one not taken; `on_host`: learn how many each expert has, at the cost of waiting.

    With `on_host`, or `compact`, which waits for their number alone, choices not taken are left out; else M is N k.
    """
    flat = experts.reshape(-1)
    order = flat.argsort(stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    counts = counted(flat, n_experts, None)
    ends = counts.cumsum(0).to(torch.int32)
    known = _plain(counts, len(flat)) if on_host else None
    if known is not None:
        order = order[: sum(known)]
    elif compact:
        order = order[: int(ends[-1])]
    return Order(order // experts.shape[1], places.view_as(experts), Groups(ends, known))


def gather(x: Tensor, order: Order) -> Tensor:
    """(N, D) -> (M, D): each sorted pair's token."""
    return _Gather.apply(x, order)


def combine(rows: Tensor, weights: Tensor, order: Order, n_experts: int, experts: Tensor) -> Tensor:
    """(M, D) outputs of sorted pairs, weighted (N, k) and added up: (N, D); choices not taken add nothing."""
    taken = experts < n_experts
    weights = torch.where(taken, weights, 0.0).to(rows.dtype)
    return _Combine.apply(rows, weights, order, taken)


def has_values(tensor: Tensor) -> bool:
    """Whether there is something to read: not where a step is planned on shapes alone."""
    return not (tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor))


def _plain(counts: Tensor, total: int) -> list[int]:
    """The counts; of a tensor without values, equal ones."""
    if not has_values(counts):
        share, rest = divmod(total, len(counts))
        return [share + (e < rest) for e in range(len(counts))]
    return counts.tolist()


class _Gather(torch.autograd.Function):
    """Rows by index; backward reads instead of adding in place, so that equal inputs give equal bits on any device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return x.index_select(0, order.tokens)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor) -> tuple[Tensor, None]:
        return _summed(d_rows, ctx.order.places), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, order: Order, taken: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights)
        ctx.order, ctx.taken = order, taken
        return _summed(rows, order.places, weights)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        rows, weights = ctx.saved_tensors
        order = ctx.order
        d_rows = d_weights = None
        dy = dy.contiguous()
        each = dy.index_select(0, order.tokens)
        if ctx.needs_input_grad[1]:
            products = torch.linalg.vecdot(rows, each)
            d_weights = torch.where(ctx.taken, _picked(products, order.places), 0.0)
        if ctx.needs_input_grad[0]:
            sorted_weights = weights.new_zeros(len(rows) + 1)
            sorted_weights[order.places.clamp_max(len(rows))] = weights
            d_rows = each.mul_(sorted_weights[:-1, None])
        return d_rows, d_weights, None, None


def _picked(rows: Tensor, places: Tensor) -> Tensor:
    """The rows at (N, k) places; places beyond the last give any row."""
    if not len(rows):
        return rows.new_zeros(*places.shape, *rows.shape[1:])
    return rows[places.clamp_max(len(rows) - 1)]


def _summed(rows: Tensor, places: Tensor, weights: Tensor | None = None) -> Tensor:
    """(M, D) -> (N, D): for each token the sum of its rows, weighted; places beyond the last row add nothing."""
    if not len(rows):
        return rows.new_zeros(len(places), rows.shape[1])
    if len(rows) < places.numel():
        there = places < len(rows)
        weights = there.to(rows.dtype) if weights is None else torch.where(there, weights, 0.0)
        places = places.clamp_max(len(rows) - 1)
    return F.embedding_bag(places, rows, per_sample_weights=weights, mode="sum")
