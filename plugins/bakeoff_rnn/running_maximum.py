"""A running maximum that decays, `m_t = max(a_t + m_(t-1), b_t)`, of each channel by itself: the stabiliser of xLSTM.

It is a linear recurrence in the algebra of maximum and sum, and is scanned like one: about sqrt(T) chunks of about
sqrt(T) tokens at once, then from chunk to chunk. Its gradient goes to a and on to the token before where their sum is
the larger one, and else to b: a linear recurrence backwards, whose decays are 1 and 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from bakeoff.parts.scans.elementwise import recur_backward
from torch import Tensor
from torch.autograd.function import once_differentiable


def running_maximum(a: Tensor, b: Tensor, first: Tensor) -> Tensor:
    """m of `a` <= 0, which may be -inf, and `b`, both (B, T, C); `first` (B, C) is m before them."""
    return _RunningMaximum.apply(a, b, first)


class _RunningMaximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, first: Tensor) -> Tensor:
        m = b.clone(memory_format=torch.contiguous_format)
        torch.maximum(m[:, 0], a[:, 0] + first, out=m[:, 0])
        _sweep(m, a.clone(memory_format=torch.contiguous_format))
        ctx.save_for_backward(m > b)
        return m

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (passes,) = ctx.saved_tensors
        passes = passes.to(dm.dtype)
        dm = recur_backward(passes, dm, None)
        da = dm * passes
        return da, dm - da, da[:, 0]


def _sweep(m: Tensor, a: Tensor) -> None:
    """In place `m_t = max(m_t, a_t + m_(t-1))` from the second token on; `a` holds nothing of use afterwards."""
    T = m.shape[1]
    Q = 2 ** int(math.log2(T) / 2)
    n = T // Q
    inside, decay = (x[:, : n * Q].unflatten(1, (n, Q)) for x in (m, a))
    _along(inside.unbind(2), decay.unbind(2), add=True)
    _along(inside[:, :, -1].unbind(1), decay[:, :, -1].unbind(1), add=False)
    torch.maximum(inside[:, 1:, :-1], decay[:, 1:, :-1] + inside[:, :-1, -1:], out=inside[:, 1:, :-1])
    _along(m[:, n * Q - 1 :].unbind(1), a[:, n * Q - 1 :].unbind(1), add=False)


def _along(rows: tuple[Tensor, ...], decays: tuple[Tensor, ...], *, add: bool) -> None:
    """Each row with what the one before it passes on; with `add`, its decay is then that from the first row on."""
    for t in range(1, len(rows)):
        torch.maximum(rows[t], decays[t] + rows[t - 1], out=rows[t])
        if add:
            decays[t].add_(decays[t - 1])
