"""The real-gated linear recurrence of Griffin, over a sequence and for one token.

All forms take x (B, T, W), the gates r and i before their sigmoids, `floor` (W,) <= 0, and `first`, True at the first
token of a document, (B or 1, T), or None where the call has none. They compute, channel by channel,

    log a_t = floor sigmoid(r_t)        m_t = sqrt(1 - a_t^2)        h_t = a_t h_(t-1) + m_t sigmoid(i_t) x_t

with a = 0, and so m = 1, at a first token. The derivative of the square root is cut at 1000, so that the gradient stays
finite as a nears 1 (De et al., 2024, arXiv:2402.19427). A token with r = -inf leaves the state as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.scans.elementwise import before, entering, recur_, recur_backward
from torch import Tensor
from torch.autograd.function import once_differentiable

#: The largest derivative of sqrt(1 - a^2) by its argument.
_STEEPEST = 1000.0


def rg_lru(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    floor: Tensor,
    *,
    first: Tensor | None = None,
    state: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(h, state)` by a scan; `state` (B, W) is h before the first token, None: zero, and no state is returned.

    `spans`: who has which tokens, where ranks share them out; there is no state.
    """
    if x.shape[1] == 0:
        return x, state
    h, after = _Recurrence.apply(x, r, i, floor, first, state, spans)
    return h, None if state is None else after


def rg_lru_step(
    x: Tensor, r: Tensor, i: Tensor, floor: Tensor, state: Tensor, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What `rg_lru` computes for one token, T = 1, without a gradient."""
    log_a = r.sigmoid() * floor
    if first is not None:
        log_a.masked_fill_(first[:, :, None], -torch.inf)
    a = log_a.exp()
    gain = log_a.mul_(2).expm1_().neg_().sqrt_().mul_(i.sigmoid())
    h = torch.addcmul(gain.mul_(x), a, state.unsqueeze(1))
    return h, h.squeeze(1)


def rg_lru_naive(
    x: Tensor, r: Tensor, i: Tensor, floor: Tensor, *, first: Tensor | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """What `rg_lru` computes, one token after the other."""
    h = torch.zeros_like(x[:, 0]) if state is None else state
    log_a = r.sigmoid() * floor
    if first is not None:
        log_a = log_a.masked_fill(first[:, :, None], -torch.inf)
    a, driven = log_a.exp(), multiplier(log_a) * i.sigmoid() * x
    rows = []
    for t in range(x.shape[1]):
        h = a[:, t] * h + driven[:, t]
        rows.append(h)
    return torch.stack(rows, 1), None if state is None else h


def multiplier(log_a: Tensor) -> Tensor:
    """`sqrt(1 - a^2)`, exact for a near 1, with its derivative cut."""
    squared = -torch.expm1(2 * log_a)
    root = squared.detach().sqrt()
    return root + (squared - squared.detach()) / (2 * root).clamp_min(1 / _STEEPEST)


class _Recurrence(torch.autograd.Function):
    """Gates, scan, and the gradient of both, in few passes over memory."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        r: Tensor,
        i: Tensor,
        floor: Tensor,
        first: Tensor | None,
        state: Tensor | None,
        spans: Spans | None,
    ) -> tuple[Tensor, Tensor]:
        r, i = r.sigmoid(), i.sigmoid()
        log_a = r * floor
        if first is not None:
            log_a += torch.zeros_like(first, dtype=log_a.dtype).masked_fill_(first, -torch.inf)[:, :, None]
        a = log_a.exp()
        m = log_a.mul_(2).expm1_().neg_().sqrt_()
        driven = (m * i).mul_(x)
        state = state if spans is None else entering(a, driven, spans)
        h = recur_(a, driven, state, spans)
        ctx.save_for_backward(x, r, i, floor, a, m, h, state)
        ctx.spans = spans
        ctx.set_materialize_grads(False)
        return h, h[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor | None, dafter: Tensor | None) -> tuple[Tensor | None, ...]:
        x, r, i, floor, a, m, h, state = ctx.saved_tensors
        db = recur_backward(a, torch.zeros_like(h) if dh is None else dh, dafter, ctx.spans)
        dstate = None if state is None or ctx.spans is not None else a[:, 0] * db[:, 0]
        gated = db * i
        dx = gated * m
        di = torch.ops.aten.sigmoid_backward((db * m).mul_(x), i)
        dm = gated.mul_(x)
        steep = dm.mul_(a).div_(m.clamp_min(0.5 / _STEEPEST))
        dlog_a = before(h, state, ctx.spans).mul_(db).sub_(steep).mul_(a)  # 0 at a first token, as a is
        dfloor = (dlog_a * r).sum((0, 1))
        dr = torch.ops.aten.sigmoid_backward(dlog_a.mul_(floor), r)
        return dx, dr, di, dfloor, None, dstate, None
