"""The linear recurrence of each channel by itself, `h_t = exp(log_a_t) h_(t-1) + b_t`, and its gradient.

Time is cut into chunks of 16 tokens. All chunks are scanned at once, each from zero; their last tokens make a
recurrence of the same kind, T / 16 long, which is solved likewise; then each chunk is told what enters it, times the
product of its decays up to each token. That takes some 30 steps for each factor of 16 in T, nothing is divided by a
decay, and no decay is too strong or too weak. The gradient of h is the same recurrence, backwards:
`dh_t = dy_t + exp(log_a_(t+1)) dh_(t+1)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Tokens of a chunk: measured at T 256 to 8192.
_CHUNK = 16


def linear_scan(
    log_a: Tensor, b: Tensor, *, state: Tensor | None = None, segments: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`(h, state)` of `log_a` <= 0 and `b`, both (B, T, C), in float32 or wider.

    `state` (B, C) is h before the first token; None: there is nothing before, and no state is returned. `segments`
    (B, T) counts the documents that began in the row: the state of one does not reach the next. A token with log_a = 0
    and b = 0 leaves the state as it is.
    """
    if b.shape[1] == 0:
        return b, state
    h, after = _LinearScan.apply(log_a, b, state, segments)
    return h, None if state is None else after


def linear_scan_step(log_a: Tensor, b: Tensor, state: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What `linear_scan` computes for one token, T = 1."""
    a = log_a.exp()
    if segments is not None:
        a = a * (segments == 0)[:, :, None].to(a.dtype)
    h = torch.addcmul(b, a, state[:, None])
    return h, h[:, 0]


def linear_scan_naive(
    log_a: Tensor, b: Tensor, *, state: Tensor | None = None, segments: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """What `linear_scan` computes, one token after the other."""
    h = torch.zeros_like(b[:, 0]) if state is None else state
    segment = torch.zeros_like(b[:, 0, 0], dtype=torch.long)
    rows = []
    for t in range(b.shape[1]):
        if segments is not None:
            h = torch.where((segments[:, t] == segment)[:, None], h, 0)
            segment = segments[:, t]
        h = log_a[:, t].exp() * h + b[:, t]
        rows.append(h)
    return torch.stack(rows, 1), None if state is None else h


def sweep_(h: Tensor, a: Tensor, *, reverse: bool = False) -> None:
    """In place `h_t += a_t h_(t-1)` from the second token on, or `h_t += a_t h_(t+1)` from the last but one down.

    Both are (B, T, C); `a` holds nothing of use afterwards. Not differentiable.
    """
    T = h.shape[1]
    order = slice(None, None, -1 if reverse else 1)
    n = T // _CHUNK
    done = 1
    if n > 1:
        done = n * _CHUNK
        chunked = slice(T - done, T) if reverse else slice(0, done)
        inside, decay = (x[:, chunked].unflatten(1, (n, _CHUNK)) for x in (h, a))
        rows, decays = inside.unbind(2)[order], decay.unbind(2)[order]
        for j in range(1, _CHUNK):
            rows[j].addcmul_(decays[j], rows[j - 1])
            decays[j].mul_(decays[j - 1])
        sweep_(rows[-1], decays[-1], reverse=reverse)
        if reverse:
            inside[:, :-1, 1:].addcmul_(decay[:, :-1, 1:], inside[:, 1:, :1])
        else:
            inside[:, 1:, :-1].addcmul_(decay[:, 1:, :-1], inside[:, :-1, -1:])
    rest = slice(0, T - done + 1) if reverse else slice(done - 1, T)
    rows, decays = h[:, rest].unbind(1)[order], a[:, rest].unbind(1)[order]
    for t in range(1, len(rows)):
        rows[t].addcmul_(decays[t], rows[t - 1])


def recur_(a: Tensor, b: Tensor, state: Tensor | None) -> Tensor:
    """h of the recurrence; `b` becomes it. Not differentiable: `recur_backward` gives the gradient of `b`."""
    if state is not None:
        b[:, 0].addcmul_(a[:, 0], state)
    sweep_(b, a.clone())
    return b


def recur_backward(a: Tensor, dh: Tensor, dafter: Tensor | None) -> Tensor:
    """The gradient of `b`, from those of h by what reads it, and of the last h by what reads it as the state."""
    db = dh.clone(memory_format=torch.contiguous_format)
    if dafter is not None:
        db[:, -1] += dafter
    following = torch.empty_like(a)
    following[:, :-1] = a[:, 1:]
    following[:, -1] = 0
    sweep_(db, following, reverse=True)
    return db


def continues(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where a token belongs to the document of the one before it, (B, T, 1); `segments` as in `linear_scan`."""
    previous = torch.nn.functional.pad(segments[:, :-1], (1, 0))
    return (segments == previous)[:, :, None].to(dtype)


def before(h: Tensor, state: Tensor | None) -> Tensor:
    """h of the token before, (B, T, C)."""
    first = torch.zeros_like(h[:, :1]) if state is None else state[:, None]
    return torch.cat([first, h[:, :-1]], 1)


class _LinearScan(torch.autograd.Function):
    """`linear_scan` and its gradient; keeps `exp(log_a)` and h."""

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, b: Tensor, state: Tensor | None, segments: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        a = log_a.exp()
        if segments is not None:
            a *= continues(segments, a.dtype)
        h = recur_(a, b.clone(memory_format=torch.contiguous_format), state)
        ctx.save_for_backward(a, h, state)
        ctx.set_materialize_grads(False)
        return h, h[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor | None, dafter: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, None]:
        a, h, state = ctx.saved_tensors
        db = recur_backward(a, torch.zeros_like(h) if dh is None else dh, dafter)
        da = before(h, state).mul_(db)
        dstate = None if state is None else a[:, 0] * db[:, 0]
        return da.mul_(a), db, dstate, None
