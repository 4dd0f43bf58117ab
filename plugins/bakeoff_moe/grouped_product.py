"""Rows that lie together by group, each times its group's own matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from bakeoff.parts.products import linear
from torch import Tensor


class Groups(NamedTuple):
    """How many of the rows (M, D), from the first, belong to each of E groups; rows beyond belong to none.

    `ends` (E,) int32 says it on the rows' device; `counts`, the same in plain numbers, is None where reading them
    would wait for a device.
    """

    ends: Tensor
    counts: list[int] | None


_current: ContextVar[Groups | None] = ContextVar("groups", default=None)


@contextmanager
def grouped_by(groups: Groups) -> Iterator[None]:
    """Products of stacked matrices inside are by these groups."""
    token = _current.set(groups)
    try:
        yield
    finally:
        _current.reset(token)


def current_groups() -> Groups | None:
    """The groups of the innermost `grouped_by`."""
    return _current.get()


def grouped_product(x: Tensor, weight: Tensor, groups: Groups) -> Tensor:
    """(M, D), (E, F, D) -> (M, F): `x_i W_e^T` for each row i of group e, and zeros for rows of none.

    A loop over groups where their sizes are known, else one grouped kernel (bfloat16 on a GPU that has it). Matrices of
    groups without rows are not read, and have gradients of zero.
    """
    if groups.counts is None and len(x):
        return _OneKernel.apply(x.contiguous(), weight, groups.ends)
    counts = [0] * len(weight) if groups.counts is None else groups.counts
    return _Looped.apply(x, weight, counts) if torch.is_grad_enabled() else _one_by_one(x, weight, counts)


def grouped_product_naive(x: Tensor, weight: Tensor, groups: Groups) -> Tensor:
    """The same, row by row."""
    ends = groups.ends.tolist()
    y = x.new_zeros(len(x), weight.shape[1])
    for i in range(ends[-1]):
        y[i] = weight[next(e for e, end in enumerate(ends) if i < end)] @ x[i]
    return y


def has_kernel(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether `torch._grouped_mm` is one kernel for these in `dtype`, that groups of any sizes suit.

    It is for bfloat16, rows of a multiple of 16 bytes and fewer than 1024 groups on CUDA devices of capability 9 or 10;
    elsewhere it is a loop that reads the sizes on the host, one more time for every product.
    """
    return (
        x.is_cuda
        and dtype == torch.bfloat16
        and hasattr(torch, "_grouped_mm")
        and len(weight) < 1024
        and all(width % 8 == 0 for width in weight.shape[1:])
        and torch.cuda.get_device_capability(x.device)[0] in (9, 10)
    )


class _OneKernel(torch.autograd.Function):
    """One kernel for all groups; what it leaves unwritten, rows of no group and groups without rows, is zeros.

    Layouts are those under which the kernel asks nothing of the groups' sizes: in the gradient by the weights, whose
    sums run over a group's rows, `dy^T` stands by columns and `x` by rows.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ends)
        return _zeros_beyond(torch._grouped_mm(x, weight.transpose(1, 2), offs=ends), ends)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, ends = ctx.saved_tensors
        by_x, by_weight, _ = ctx.needs_input_grad
        dy = dy.contiguous()
        dx = _zeros_beyond(torch._grouped_mm(dy, weight, offs=ends), ends) if by_x else None
        dw = None
        if by_weight:
            empty = ends.diff(prepend=ends.new_zeros(1)) == 0
            dw = torch._grouped_mm(dy.t(), x, offs=ends).masked_fill_(empty[:, None, None], 0.0)
        return dx, dw, None


def _zeros_beyond(rows: Tensor, ends: Tensor) -> Tensor:
    beyond = torch.arange(len(rows), device=rows.device) >= ends[-1]
    return rows.masked_fill_(beyond[:, None], 0.0)


class _Looped(torch.autograd.Function):
    """One product a group, forward; two, backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counts = counts
        y = x.new_empty(len(x), weight.shape[1])
        for e, here in _spans(counts, y):
            torch.mm(x[here], weight[e].t(), out=y[here])
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        by_x, by_weight, _ = ctx.needs_input_grad
        dx = x.new_empty(x.shape) if by_x else None
        dw = None
        if by_weight:
            dw = torch.empty_like(weight)
            for e in (e for e, count in enumerate(ctx.counts) if not count):
                dw[e] = 0.0
        for e, here in _spans(ctx.counts, dx):
            if dx is not None:
                torch.mm(dy[here], weight[e], out=dx[here])
            if dw is not None:
                torch.mm(dy[here].t(), x[here], out=dw[e])
        return dx, dw, None


def _one_by_one(x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    """The loop where nothing is differentiated."""
    ys = [linear(x[here], weight[e], None) for e, here in _spans(counts, None)]
    return (
        torch.cat([*ys, x.new_zeros(len(x) - sum(counts), weight.shape[1])])
        if sum(counts) < len(x) or not ys
        else (ys[0] if len(ys) == 1 else torch.cat(ys))
    )


def _spans(counts: list[int], written: Tensor | None) -> Iterator[tuple[int, slice]]:
    """Each group that has rows, and where; rows beyond the last are filled with zeros.

    Of tensors without values, which have equal groups and are planned with, the first speaks for all.
    """
    start = 0
    for e, count in enumerate(counts[:1] if isinstance(written, torch._subclasses.FakeTensor) else counts):
        if count:
            yield e, slice(start, start + count)
        start += count
    if written is not None and start < len(written):
        written[start:].zero_()
