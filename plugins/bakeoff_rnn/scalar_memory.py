"""The recurrence of an sLSTM over packed and padded rows: a fast loop, one token, and naively.

All take the input's part of the gates, `gates` (B, T, H, 4N), of each head o, z, i and f one after another; the weights
`by_h` (H, 4N, N) of the hidden state, head by head; the `state` before the first token; `starts` and `real` (B, T) or
None. They return `y` (B, T, H, N) and the state after the last real token. A start forgets the state; padding leaves it
as it is and gets an arbitrary output.

    o, z, i, f = gates_t + by_h h_(t-1)                   m_t = max(log sigmoid(f) + m_(t-1), i)
    f' = exp(log sigmoid(f) + m_(t-1) - m_t)              i' = exp(i - m_t)
    c_t = f' c_(t-1) + i' tanh(z)        n_t = f' n_(t-1) + i'        h_t = sigmoid(o) c_t / n_t

The outputs do not depend on m, which keeps c and n within bounds however large i is; it counts as a constant for
gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bakeoff_rnn.loops import Passing, kept_by, passing

#: m of a state that holds nothing: no weight is as small.
NOTHING = -1e30


class ScalarMemory(NamedTuple):
    """Hidden state, cell, normaliser and stabiliser, (B, H, N) each, float32 or wider."""

    h: Tensor
    c: Tensor
    n: Tensor
    m: Tensor


def scalar_memory(
    gates: Tensor, by_h: Tensor, state: ScalarMemory, starts: Tensor | None, real: Tensor | None
) -> tuple[Tensor, ScalarMemory]:
    """The recurrence, one product a token for each head, and its gradient by a loop of one more."""
    given = (t.transpose(0, 1) for t in _entering(state, starts))
    y, *after = _Loop.apply(gates.permute(1, 2, 0, 3), by_h, *given, passing(starts, real, gates.dtype))
    return y.permute(2, 0, 1, 3), ScalarMemory(*(t.transpose(0, 1) for t in after))


def scalar_memory_step(
    gates: Tensor, by_h: Tensor, state: ScalarMemory, starts: Tensor | None, real: Tensor | None
) -> tuple[Tensor, ScalarMemory]:
    """The recurrence of one token, T = 1."""
    h, c, n, m = _entering(state, starts)
    o, z, i, f = (gates[:, 0] + (h.transpose(0, 1) @ by_h.mT).transpose(0, 1)).chunk(4, -1)
    kept = F.logsigmoid(f) + m.detach()
    m = torch.maximum(kept, i).detach()
    keep, write = (kept - m).exp(), (i - m).exp()
    c, n = keep * c + write * z.tanh(), keep * n + write
    h = o.sigmoid() * c / n
    return h[:, None], ScalarMemory(*kept_by(real, (h, c, n, m), state))


def scalar_memory_naive(
    gates: Tensor, by_h: Tensor, state: ScalarMemory, starts: Tensor | None, real: Tensor | None
) -> tuple[Tensor, ScalarMemory]:
    """What `scalar_memory` computes, one token after the other; its products are those that `SLSTM.flops` counts."""
    rows = []
    for t in range(gates.shape[1]):
        here = slice(t, t + 1)
        marks = (None if mark is None else mark[:, here] for mark in (starts, real))
        y, state = scalar_memory_step(gates[:, here], by_h, state, *marks)
        rows.append(y)
    return torch.cat(rows, 1), state


def _entering(state: ScalarMemory, starts: Tensor | None) -> ScalarMemory:
    """What reaches the first token: nothing where it starts a document."""
    if starts is None:
        return state
    start = starts[:, 0, None, None]
    return ScalarMemory(*(torch.where(start, empty, t) for t, empty in zip(state, (0, 0, 0, NOTHING), strict=True)))


class _Loop(torch.autograd.Function):
    """`apply(gates, by_h, h, c, n, m, passed) -> (y, h, c, n, m)`; gates (T, H, B, 4N), y (T, H, B, N), h (H, B, N)."""

    @staticmethod
    def forward(ctx: Any, gates, by_h, h, c, n, m, passed: Passing | None):
        gates = gates.clone(memory_format=torch.contiguous_format)
        T, N = gates.shape[0], h.shape[-1]
        held = [t.new_empty(T + 1, *t.shape) for t in (h, c, n)]  # what enters each token, and what leaves the last
        for states, first in zip(held, (h, c, n), strict=True):
            states[0] = first
        H, C, S = held
        y = H[1:] if passed is None else torch.empty_like(H[1:])
        ratio, moved = torch.empty_like(y), gates.new_empty(*gates.shape[:3], 2 * N)
        o, z, i, f = (part.unbind(0) for part in gates.chunk(4, -1))
        write, keep = (part.unbind(0) for part in moved.chunk(2, -1))
        back = by_h.mT
        for t, (h, c, n, h_next, c_next, n_next) in enumerate(zip(H, C, S, H[1:], C[1:], S[1:], strict=False)):
            gates[t].baddbmm_(h, back)
            o[t].sigmoid_()
            z[t].tanh_()
            kept, before = F.logsigmoid(f[t]).add_(m), m
            m = torch.maximum(kept, i[t])
            torch.sub(i[t], m, out=write[t])
            torch.sub(kept, m, out=keep[t])
            moved[t].exp_()
            torch.mul(keep[t], c, out=c_next).addcmul_(write[t], z[t])
            torch.addcmul(write[t], keep[t], n, out=n_next)
            torch.mul(o[t], torch.div(c_next, n_next, out=ratio[t]), out=y[t])
            if passed is not None:
                new, old = passed.new[t], passed.old[t]
                torch.mul(y[t], new, out=h_next).addcmul_(h, old)
                c_next.mul_(new).addcmul_(c, old)
                n_next.mul_(new).addcmul_(n, old)
                m = m * new + before * old + (1 - new - old) * NOTHING
        ctx.save_for_backward(gates, by_h, H, C, S, moved, ratio, *(passed or ()))
        ctx.mark_non_differentiable(m)
        return y, H[-1].clone(), C[-1].clone(), S[-1].clone(), m

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy, dh, dc, dn, dm):
        gates, by_h, H, C, S, moved, ratio, *masks = ctx.saved_tensors
        with torch.autocast(gates.device.type, enabled=False):
            slopes, by_n, through_c, through_n = _slopes(gates, C[:-1], S[:-1], moved, ratio)
            dh, dc, dn = dh, dc.clone(), dn.clone()
            for t in range(gates.shape[0] - 1, -1, -1):
                if masks:
                    new, old = masks[0][t], masks[1][t]
                    passed = dh * old, dc * old, dn * old
                    dh, dc, dn = dh * new, dc * new, dn * new
                dh = dh + dy[t]
                dc.addcmul_(dh, through_c[t])
                dn.addcmul_(dh, through_n[t])
                to_o, to_others = slopes[t, :, :, 0], slopes[t, :, :, 1:]
                to_o.mul_(dh)
                to_others.mul_(dc[:, :, None])
                to_others[:, :, 1:].addcmul_(by_n[t], dn[:, :, None])
                keep = moved[t, :, :, by_h.shape[2] :]
                dc.mul_(keep)
                dn.mul_(keep)
                dh = torch.bmm(slopes[t].flatten(2), by_h)
                if masks:
                    dh, dc, dn = dh.add_(passed[0]), dc.add_(passed[1]), dn.add_(passed[2])
            dgates = slopes.flatten(3)
            dby_h = dgates.transpose(0, 1).flatten(1, 2).mT @ H[:-1].transpose(0, 1).flatten(1, 2)
        return dgates, dby_h, dh, dc, dn, None, None


def _slopes(gates: Tensor, c: Tensor, n: Tensor, moved: Tensor, ratio: Tensor) -> tuple[Tensor, ...]:
    """For all tokens, by how much one thing moves another.

    The inputs of o move h, and those of z, i and f move c, (T, H, B, 4, N); those of i and f move n, (T, H, B, 2, N);
    and c and n move h, (T, H, B, N) each.
    """
    o, z, _, f = gates.chunk(4, -1)
    write, keep = moved.chunk(2, -1)
    slopes, by_n = torch.empty_like(gates).unflatten(-1, (4, -1)), torch.empty_like(moved).unflatten(-1, (2, -1))
    to_o, to_z, to_i, to_f = slopes.unbind(-2)
    i_to_n, f_to_n = by_n.unbind(-2)
    torch.addcmul(o, o, o, value=-1, out=to_o).mul_(ratio)
    torch.addcmul(write, write, z * z, value=-1, out=to_z)
    torch.mul(write, z, out=to_i)
    i_to_n.copy_(write)
    forgets = torch.sigmoid(-f).mul_(keep)
    torch.mul(forgets, c, out=to_f)
    torch.mul(forgets, n, out=f_to_n)
    through_c = o / torch.addcmul(write, keep, n)
    return slopes, by_n, through_c, -through_c * ratio
