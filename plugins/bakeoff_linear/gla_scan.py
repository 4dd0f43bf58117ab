"""Gated linear attention: a matrix state with one decay a key channel and token, by chunks and token by token.

All forms compute, for each head with values of width P, keys of width N and a state (P, N):

    S_t = S_(t-1) diag(exp(log_a_t)) + v_t k_t^T        y_t = S_t q_t

Within a chunk y_t reads v_j by `sum_c q_tc k_jc exp(l_tc - l_jc)`, l the log decays summed up to a token; between
chunks the state carries what is older (Yang et al., 2023, arXiv:2312.06635).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bakeoff_linear.chunks import by_chunks, chunk_length, from_chunks, seen
from bakeoff_linear.decays import decayed_by_channel


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    *,
    chunk: int = 32,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` of `q`, `k` and `log_a` <= 0, (B, T, H, N), and `v` (B, T, H, P), by chunks; y is (B, T, H, P).

    `state` (B, H, P, N) precedes the call; None: there is nothing before, and no state is returned. `segments` (B, T)
    counts the documents that began in it: the state of one does not reach the next. A token with log_a = 0 and k = 0
    or v = 0 leaves the state as it is. `chunk` is a power of two.
    """
    if v.shape[1] == 0:
        return v, state
    Q, shape = chunk_length(v.shape[1], chunk), v.shape
    q, k, v, log_a = (by_chunks(t, Q) for t in (q, k, v, log_a))
    (pairs,), (reads,), (writes,), keep = decayed_by_channel([q], [k], log_a, seen(segments, Q, v))
    y = pairs[0] @ v
    if v.shape[0] == 1 and state is None:
        return from_chunks(y, shape), None
    entering, after = _Carried.apply(v.mT @ writes, keep, state)
    return from_chunks(y + reads @ entering.mT, shape), None if state is None else after


def gla_step(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, *, state: Tensor, segments: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What `gla` computes for one token, T = 1."""
    keep = log_a[:, 0, :, None].exp()
    if segments is not None:
        keep = keep * (segments == 0)[:, :, None, None].to(keep.dtype)
    held = torch.addcmul(state * keep, v[:, 0, :, :, None], k[:, 0, :, None])
    return (held @ q[:, 0, :, :, None])[..., 0][:, None], held


def gla_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What `gla` computes, one token after the other; its products are those that `GLA.flops` counts."""
    B, T, H, P = v.shape
    held = v.new_zeros(B, H, P, k.shape[-1]) if state is None else state
    segment = torch.zeros_like(v[:, 0, 0, 0], dtype=torch.long)
    rows = []
    for t in range(T):
        if segments is not None:
            held = torch.where((segments[:, t] == segment)[:, None, None, None], held, 0)
            segment = segments[:, t]
        held = log_a[:, t, :, None].exp() * held + v[:, t, :, :, None] @ k[:, t, :, None]
        rows.append((held @ q[:, t, :, :, None])[..., 0])
    return torch.stack(rows, 1), None if state is None else held


class _Carried(torch.autograd.Function):
    """`apply(own, keep, state) -> (entering, after)`: behind each chunk, S is `own` and `keep` times S before it.

    `own` and `entering`, S before each, are (n, B, H, P, N); `keep` (n, B, H, 1, N); `state`, None for zeros, and
    `after`, S behind the last, (B, H, P, N).
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, keep: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        entering, held = torch.empty_like(own), torch.zeros_like(own[0]) if state is None else state
        for i in range(own.shape[0]):
            entering[i] = held
            held = torch.addcmul(own[i], held, keep[i])
        ctx.save_for_backward(entering, keep)
        return entering, held

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dentering: Tensor, dafter: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        entering, keep = ctx.saved_tensors
        down, held = torch.empty_like(entering), dafter
        for i in range(down.shape[0] - 1, -1, -1):
            down[i] = held
            held = torch.addcmul(dentering[i], held, keep[i])
        return down, (down * entering).sum(-2, keepdim=True), held if ctx.needs_input_grad[2] else None
