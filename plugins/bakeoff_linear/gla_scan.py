"""Gated linear attention: a matrix state with one decay a key channel and token, by chunks and token by token.

All forms compute, for each head with values of width P, keys of width N and a state (P, N):

    S_t = S_(t-1) diag(exp(log_a_t)) + v_t k_t^T        y_t = S_t q_t

Within a chunk, y_t reads v_j by `sum_c q_tc k_jc exp(l_tc - l_jc)`, l the log decays summed up to a token. Of every
block of tokens on the diagonal, the second half reads the first by way of the border between them: queries decay from
there, keys up to there, and their product is one of matrices; halves are blocks in turn. So no decay is divided by
another, however strong, and of a block of Q tokens log2(Q) exponentials a number are taken, not Q (Yang et al., 2023,
arXiv:2312.06635, cut chunks into sub-chunks to the same end).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bakeoff_linear.chunks import Seen, by_chunks, chunk_length, from_chunks, seen
from bakeoff_linear.correction import inner_blocks


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
    Q = chunk_length(v.shape[1], chunk)
    y, after = _Chunked.apply(*(by_chunks(t, Q) for t in (q, k, v, log_a)), state, seen(segments, Q, v))
    return from_chunks(y, v.shape), after


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


class _Chunked(torch.autograd.Function):
    """`apply(q, k, v, log_a, state, seen) -> (y, state)`, all but the state (n, B, H, Q, N or P)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, state: Tensor | None, seen: Seen) -> Any:
        steps, since, until = _decays(log_a)
        pairs = torch.diag_embed((q * k).sum(-1))
        for size, decay in steps:
            late, early = _crossing(q, k, decay, size)
            inner_blocks(pairs, size, 1, 0).copy_(late @ early.mT)
        reach, left = since.exp_(), until.exp_()
        keep = reach[..., -1:, :].clone()
        if seen.entered is not None:
            pairs *= seen.pairs
            reach, left, keep = reach * seen.entered, left * seen.left, keep * seen.kept
        y = pairs @ v
        entering = after = None
        if v.shape[0] > 1 or state is not None:
            entering = v.mT @ (k * left)  # what each chunk adds to the state, and then the state that enters it
            after = _recur(entering, keep, state)
            y += (q * reach) @ entering.mT
        ctx.save_for_backward(q, k, v, pairs, reach, left, keep, entering, *(decay for _, decay in steps))
        ctx.seen, ctx.continued = seen, state is not None
        return y, after if ctx.continued else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dafter: Tensor | None) -> Any:
        q, k, v, pairs, reach, left, keep, entering, *steps = ctx.saved_tensors
        with torch.autocast(v.device.type, enabled=False):
            dy = dy.contiguous()
            dpairs, dv = dy @ v.mT, pairs.mT @ dy
            if ctx.seen.entered is not None:
                dpairs *= ctx.seen.pairs
            alone = dpairs.diagonal(dim1=-2, dim2=-1)[..., None]
            dstate, dq, dk = None, torch.zeros_like(q), torch.zeros_like(k)
            since, until = (
                torch.zeros_like(q),
                torch.zeros_like(k),
            )  # gradients of the decays up to a token, and after it
            if entering is not None:
                dread = (dy @ entering).mul_(reach)
                dleaving = dy.mT @ (q * reach)
                dstate = _recur_backward(dleaving, keep, dafter)
                dv += (k * left) @ dleaving.mT
                dwritten = (v @ dleaving).mul_(left)
                dq, dk = dread, dwritten
                torch.mul(q, dread, out=since)
                torch.mul(k, dwritten, out=until)
                since[..., -1, :] += (dleaving * entering).sum(-2).mul_(keep[..., 0, :])
            for level in range(len(steps) - 1, -1, -1):
                _cross_backward(1 << level, steps[level], (q, k), dpairs, (dq, dk), (since, until))
            dq.addcmul_(alone, k)
            dk.addcmul_(alone, q)
        return dq, dk, dv, since, dstate if ctx.continued else None, None


def _halves(t: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Of each 2 `size` rows of (..., Q, N) the first half and the second, (..., blocks, size, N)."""
    first, second = t.unflatten(-2, (-1, 2, size)).unbind(-3)
    return first, second


def _decays(log_a: Tensor) -> tuple[list[tuple[int, Tensor]], Tensor, Tensor]:
    """What is left at the borders between halves, by their size; log decays up to a token, and after it, in the chunk.

    For each size, `exp` of the log decays from the border up to a token of the second half, and of those after a token
    of the first half up to the border, (..., Q, N).
    """
    since, until, steps = log_a.clone(), torch.zeros_like(log_a), []
    size = 1
    while size < log_a.shape[-2]:
        decay = torch.empty_like(log_a)
        (since_0, since_1), (until_0, _) = _halves(since, size), _halves(until, size)
        early, late = _halves(decay, size)
        torch.exp(until_0, out=early)
        torch.exp(since_1, out=late)
        steps.append((size, decay))
        until_0 += since_1[..., -1:, :]
        since_1 += since_0[..., -1:, :]
        size *= 2
    return steps, since, until


def _crossing(q: Tensor, k: Tensor, decay: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Queries of second halves and keys of first ones, as they stand at the border."""
    early, late = _halves(decay, size)
    return _halves(q, size)[1] * late, _halves(k, size)[0] * early


def _cross_backward(
    size: int,
    decay: Tensor,
    given: tuple[Tensor, Tensor],
    dpairs: Tensor,
    gradients: tuple[Tensor, Tensor],
    sums: tuple[Tensor, Tensor],
) -> None:
    """Add what comes by way of the borders between halves of `size`.

    `gradients` are those of q and k; `sums` those of the log decays up to a token, and after it, in blocks of twice
    `size`, and then of `size`.
    """
    (since_0, since_1), (until_0, _) = (_halves(t, size) for t in sums)
    since_0[..., -1, :] += since_1.sum(-2)
    since_1[..., -1, :] += until_0.sum(-2)
    late, early = _crossing(*given, decay, size)
    d = inner_blocks(dpairs, size, 1, 0)
    early_decay, late_decay = _halves(decay, size)
    dlate, dearly = (d @ early).mul_(late_decay), (d.mT @ late).mul_(early_decay)
    for gradient, added, half, total, of in (
        (gradients[0], dlate, 1, since_1, given[0]),
        (gradients[1], dearly, 0, until_0, given[1]),
    ):
        _halves(gradient, size)[half].add_(added)
        total.addcmul_(added, _halves(of, size)[half])


def _recur(own: Tensor, keep: Tensor, state: Tensor | None) -> Tensor:
    """The state after the last chunk; those that enter the chunks are written over what they add, `own`."""
    held = torch.zeros_like(own[0]) if state is None else state
    for i in range(own.shape[0]):
        after = torch.addcmul(own[i], held, keep[i])
        own[i] = held
        held = after
    return held


def _recur_backward(dread: Tensor, keep: Tensor, dafter: Tensor | None) -> Tensor:
    """The gradient of the first state; those of leaving states are written over those of reading, `dread`."""
    held = torch.zeros_like(dread[0]) if dafter is None else dafter
    for i in range(dread.shape[0] - 1, -1, -1):
        before = torch.addcmul(dread[i], held, keep[i])
        dread[i] = held
        held = before
    return held
