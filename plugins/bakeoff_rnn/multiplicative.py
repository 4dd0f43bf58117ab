"""The recurrence of a multiplicative LSTM over packed and padded rows: a fast loop, one token, and naively.

All take the input's part of the factors, `factor` (B, T, W), and of the gates, `gates` (B, T, 4W) in the order o, i, f,
g; the weights `by_h` (W, W) and `by_m` (4W, W); `h` and `c` (B, W) before the first token; `starts` and `real` (B, T)
or None. They return `y` (B, T, W) with `h` and `c` after the last real token. A start forgets h and c; padding leaves
them as they are and gets an arbitrary output.

    m_t = factor_t * (by_h h_(t-1))         o, i, f, g = gates_t + by_m m_t
    c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g)       h_t = sigmoid(o) tanh(c_t)
"""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.parts.products import linear
from torch import Tensor
from torch.autograd.function import once_differentiable

from bakeoff_rnn.loops import Passing, entering, kept_by, passing


def multiplicative(
    factor: Tensor,
    gates: Tensor,
    by_h: Tensor,
    by_m: Tensor,
    h: Tensor,
    c: Tensor,
    starts: Tensor | None,
    real: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence, two products a token, and its gradient by a loop of two more."""
    h, c = entering((h, c), starts)
    given = (factor.transpose(0, 1), gates.transpose(0, 1), by_h, by_m, h, c)
    y, h, c = _Loop.apply(*given, passing(starts, real, h.dtype))
    return y.transpose(0, 1), h, c


def multiplicative_step(
    factor: Tensor,
    gates: Tensor,
    by_h: Tensor,
    by_m: Tensor,
    h: Tensor,
    c: Tensor,
    starts: Tensor | None,
    real: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence of one token, T = 1."""
    before = h, c
    h, c = entering((h, c), starts)
    o, i, f, g = (gates[:, 0] + linear(factor[:, 0] * linear(h, by_h, None), by_m, None)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    y = h[:, None]
    h, c = kept_by(real, (h, c), before)
    return y, h, c


def multiplicative_naive(
    factor: Tensor,
    gates: Tensor,
    by_h: Tensor,
    by_m: Tensor,
    h: Tensor,
    c: Tensor,
    starts: Tensor | None,
    real: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `multiplicative` computes, one token after the other; its products are those that `flops` counts."""
    rows = []
    for t in range(factor.shape[1]):
        here = slice(t, t + 1)
        marks = (None if mark is None else mark[:, here] for mark in (starts, real))
        y, h, c = multiplicative_step(factor[:, here], gates[:, here], by_h, by_m, h, c, *marks)
        rows.append(y)
    return torch.cat(rows, 1), h, c


class _Loop(torch.autograd.Function):
    """`apply(factor, gates, by_h, by_m, h, c, passed) -> (y, h, c)`, with time first: factor and y (T, B, W)."""

    @staticmethod
    def forward(ctx: Any, factor, gates, by_h, by_m, h, c, passed: Passing | None):
        T, B, W = factor.shape
        factor, gates = factor.contiguous(), gates.clone(memory_format=torch.contiguous_format)
        H, C = (t.new_empty(T + 1, B, W) for t in (h, c))  # what enters each token, and what leaves the last
        H[0], C[0] = h, c
        y = H[1:] if passed is None else torch.empty_like(factor)
        read, squashed = torch.empty_like(factor), torch.empty_like(factor)
        o, i, f, g = (part.unbind(0) for part in gates.chunk(4, -1))
        opened = gates[..., : 3 * W].unbind(0)
        m = torch.empty_like(h)
        by_h_t, by_m_t = by_h.t(), by_m.t()
        steps = zip(H, C, H[1:], C[1:], y, read, factor, gates, squashed, strict=False)
        for t, (h, c, h_next, c_next, y_t, p, x, z, s) in enumerate(steps):
            torch.mul(torch.mm(h, by_h_t, out=p), x, out=m)
            z.addmm_(m, by_m_t)
            opened[t].sigmoid_()
            g[t].tanh_()
            torch.mul(f[t], c, out=c_next).addcmul_(i[t], g[t])
            torch.mul(o[t], torch.tanh(c_next, out=s), out=y_t)
            if passed is not None:
                torch.mul(y_t, passed.new[t], out=h_next).addcmul_(h, passed.old[t])
                c_next.mul_(passed.new[t]).addcmul_(c, passed.old[t])
        ctx.save_for_backward(factor, gates, by_h, by_m, H, C, read, squashed, *(passed or ()))
        return y, H[-1].clone(), C[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy, dh, dc):
        factor, gates, by_h, by_m, H, C, read, squashed, *masks = ctx.saved_tensors
        with torch.autocast(factor.device.type, enabled=False):
            slopes, through = _slopes(gates, C[:-1], squashed)
            dm, dread, dh, dc = _backward_loop(slopes, through, gates, factor, by_h, by_m, dy, dh, dc, masks)
            dgates = slopes
            flat = dgates.flatten(0, 1).t()
            dby_m = flat @ (read * factor).flatten(0, 1)
            dby_h = dread.flatten(0, 1).t() @ H[:-1].flatten(0, 1)
        return dm.mul_(read), dgates, dby_h, dby_m, dh, dc, None


def _slopes(gates: Tensor, c: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """For all tokens: by how much the inputs of o move h, those of i, f and g move c; and c moves h by way of tanh."""
    o, i, f, g = gates.chunk(4, -1)
    slopes = torch.empty_like(gates)
    to_o, to_i, to_f, to_g = slopes.chunk(4, -1)
    for slope, gate, other in ((to_o, o, squashed), (to_i, i, g), (to_f, f, c)):
        torch.addcmul(gate, gate, gate, value=-1, out=slope).mul_(other)
    torch.addcmul(i, i, g * g, value=-1, out=to_g)
    return slopes, torch.addcmul(o, o, squashed * squashed, value=-1)


def _backward_loop(
    slopes: Tensor,
    through: Tensor,
    gates: Tensor,
    factor: Tensor,
    by_h: Tensor,
    by_m: Tensor,
    dy: Tensor,
    dh: Tensor,
    dc: Tensor,
    masks: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Turn `slopes` into the gates' gradients; return those of m, of `by_h h`, and of the first h and c."""
    T, _, W = factor.shape
    dms, dreads, dc = torch.empty_like(factor), torch.empty_like(factor), dc.clone()
    to_o, to_others = slopes[..., :W].unbind(0), slopes[..., W:].unflatten(-1, (3, W)).unbind(0)
    f, slope, x, dm, dread = (t.unbind(0) for t in (gates[..., 2 * W : 3 * W], slopes, factor, dms, dreads))
    for t in range(T - 1, -1, -1):
        if masks:
            new, old = masks[0][t], masks[1][t]
            passed_h, passed_c = dh * old, dc * old
            dh, dc = dh * new, dc * new
        dh = dh + dy[t]
        dc.addcmul_(dh, through[t])
        to_o[t].mul_(dh)
        to_others[t].mul_(dc[:, None])
        dc.mul_(f[t])
        torch.mm(slope[t], by_m, out=dm[t])
        dh = torch.mm(torch.mul(dm[t], x[t], out=dread[t]), by_h)
        if masks:
            dh, dc = dh.add_(passed_h), dc.add_(passed_c)
    return dms, dreads, dh, dc
