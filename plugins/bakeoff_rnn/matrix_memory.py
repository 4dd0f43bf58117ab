"""The matrix memory of an mLSTM, whose input gate is an exponential: by chunks, one token, and naively.

For each head, with queries and keys of width N, values of width P, log forget gates f_t <= 0 and log input gates i_t:

    m_t = max(f_t + m_(t-1), i_t)                         f' = exp(f_t + m_(t-1) - m_t)      i' = exp(i_t - m_t)
    C_t = f' C_(t-1) + i' v_t k_t^T                       n_t = f' n_(t-1) + i' k_t
    y_t = C_t q_t / (max(|n_t . q_t|, exp(-m_t)) + eps)

All numbers that are formed are at most one, however large i_t is: C_t and n_t are those without m times exp(-m_t).
With m known, this is a recurrence with a scalar decay, of values that hold one more channel for n (Beck et al., 2024,
arXiv:2405.04517). A start forgets everything, m too, which is 0 before the first token. Padding is a token with f = 0
and i = `NEVER`.

All take `q` and `k` (B, T, H, N), `v` (B, T, H, P), `i` and `f` (B, T, H), in float32 or wider; `state`, or None: there
is nothing before, and no state is returned; and `segments` (B, T), the running count of documents that began in the
call. They return `y` (B, T, H, P) and the state.

Where ranks share out the tokens, they tell each other m before each span, and then C and n.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.scans.scalar_decay import scalar_decay, scalar_decay_step
from bakeoff.parts.spans import relay
from torch import Tensor
from torch.nn import functional as F

from bakeoff_rnn.running_maximum import running_maximum

#: The logarithm of an input gate that is shut.
NEVER = -1e4
#: exp(-m) is taken of no smaller m: it would overflow, and what it divides has vanished.
_LEAST = -80.0


class MatrixMemory(NamedTuple):
    """C and, as one row more, n, (B, H, P + 1, N); and m (B, H); float32 or wider."""

    held: Tensor
    m: Tensor

    @property
    def cell(self) -> Tensor:
        """C, (B, H, P, N)."""
        return self.held[:, :, :-1]

    @property
    def normaliser(self) -> Tensor:
        """n, (B, H, N)."""
        return self.held[:, :, -1]


def matrix_memory(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    *,
    eps: float = 1e-6,
    chunk: int = 64,
    state: MatrixMemory | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, MatrixMemory | None]:
    """The recurrence in matrix products over chunks of at most `chunk` tokens.

    `spans`: who has which tokens, where ranks share them out; there is no state, and they know their segments.
    """
    if q.shape[1] == 0:
        return v, state
    if spans is None:
        m, before = _stabilisers(i, f, None if state is None else state.m, segments)
    else:
        m, before = _stabilisers_along(i, f, spans)
    decay, write, floor = _gates(i, f, m, before)
    held = None if state is None else state.held
    y, held = scalar_decay(q, k, _written(v, write), decay, chunk=chunk, state=held, segments=segments, spans=spans)
    return _normalised(y, floor, eps), None if held is None else MatrixMemory(held, m[:, -1].to(v.dtype))


def matrix_memory_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    *,
    eps: float = 1e-6,
    state: MatrixMemory,
    segments: Tensor | None = None,
) -> tuple[Tensor, MatrixMemory]:
    """The recurrence of one token, T = 1."""
    before = state.m[:, None]
    if segments is not None:
        before = torch.where((segments == 0)[:, :, None], before, 0)
    m = torch.maximum(f + before, i)
    decay, write, floor = _gates(i, f, m, before)
    y, held = scalar_decay_step(q, k, _written(v, write), decay, state=state.held, segments=segments)
    return _normalised(y, floor, eps), MatrixMemory(held, m[:, 0])


def matrix_memory_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    *,
    eps: float = 1e-6,
    state: MatrixMemory | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, MatrixMemory | None]:
    """The equations, one token after the other; the products are those that `MLSTM.flops` counts."""
    B, T, H, N = q.shape
    held, m = state or (v.new_zeros(B, H, v.shape[3] + 1, N), v.new_zeros(B, H))
    C, n = held[:, :, :-1], held[:, :, -1]
    segment = torch.zeros_like(q[:, 0, 0, 0], dtype=torch.long)
    rows = []
    for t in range(T):
        if segments is not None:
            same = segments[:, t] == segment
            C, n, m = (torch.where(same.view(-1, *(1,) * (s.ndim - 1)), s, 0) for s in (C, n, m))
            segment = segments[:, t]
        before, m = m, torch.maximum(f[:, t] + m, i[:, t])
        keep, write = (f[:, t] + before - m).exp(), (i[:, t] - m).exp()
        C = keep[..., None, None] * C + write[..., None, None] * (v[:, t, :, :, None] @ k[:, t, :, None])
        n = keep[..., None] * n + write[..., None] * k[:, t]
        read, weight = C @ q[:, t, :, :, None], n[:, :, None] @ q[:, t, :, :, None]
        floor = (-m.clamp_min(_LEAST)).exp()[..., None]
        rows.append(read[..., 0] / (torch.maximum(weight[..., 0].abs(), floor) + eps))
    after = MatrixMemory(torch.cat([C, n[:, :, None]], 2), m)
    return torch.stack(rows, 1), None if state is None else after


def _stabilisers(i: Tensor, f: Tensor, first: Tensor | None, segments: Tensor | None) -> tuple[Tensor, Tensor]:
    """m_t and m_(t-1) of all tokens, (B, T, H), in float64: their differences are the logarithms of decays."""
    i, f = i.double(), f.double()
    start = torch.zeros_like(f[:, 0]) if first is None else first.double()
    if segments is None:
        m = running_maximum(f, i, start)
        return m, torch.cat([start[:, None], m[:, :-1]], 1)
    forget, write, begins = _with_starts(i, f, segments)
    m = running_maximum(forget, write, start)
    return m, torch.where(begins, 0, torch.cat([start[:, None], m[:, :-1]], 1))


def _stabilisers_along(i: Tensor, f: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """`_stabilisers` of this rank's tokens: m of each span by itself, or all that it forgets and the m that enters."""
    pieces = zip(spans.split(i.double()), spans.split(f.double()), spans.sequences, strict=True)
    given = [_with_starts(write, forget, own.segments) for write, forget, own in pieces]
    nothing = torch.zeros_like(given[0][0][:, 0])
    alone = [running_maximum(forget, write, nothing - torch.inf) for forget, write, _ in given]
    since = [forget.cumsum(1) for forget, _, _ in given]
    told = [(change[:, -1], left[:, -1]) for change, left in zip(since, alone, strict=True)]
    entering = relay(told, lambda m, told: torch.maximum(told[1], told[0] + m), nothing, spans)
    found, before = [], []
    for own, change, first, (_, _, begins) in zip(alone, since, entering, given, strict=True):
        m = torch.maximum(own, change + first[:, None])
        found.append(m)
        before.append(torch.where(begins, 0, torch.cat([first[:, None], m[:, :-1]], 1)))
    return torch.cat(found, 1), torch.cat(before, 1)


def _with_starts(i: Tensor, f: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """What m forgets and is at least, -inf and the larger gate where a document begins, and where that is."""
    if segments is None:
        return f, i, torch.zeros((), dtype=torch.bool, device=f.device)
    begins = (segments != F.pad(segments[:, :-1], (1, 0)))[:, :, None]
    return torch.where(begins, -torch.inf, f), torch.where(begins, torch.maximum(i, f), i), begins


def _gates(i: Tensor, f: Tensor, m: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log f', i', and what the weight of a token is at least, exp(-m)."""
    decay, write, floor = f - (m - before), (i - m).exp(), (-m.clamp_min(_LEAST)).exp()
    return decay.to(i.dtype), write.to(i.dtype), floor.to(i.dtype)


def _written(v: Tensor, write: Tensor) -> Tensor:
    """What the keys are written with: values, and in one channel more the weight that they have in n."""
    return torch.cat([v * write[..., None], write[..., None]], -1)


def _normalised(y: Tensor, floor: Tensor, eps: float) -> Tensor:
    """The values read, over their weight, which stands in the last channel."""
    return y[..., :-1] / (torch.maximum(y[..., -1].abs(), floor) + eps)[..., None]
