"""The linear recurrence of each channel by itself, `h_t = exp(log_a_t) h_(t-1) + b_t`, and its gradient.

Time is cut into chunks of 16 tokens. All chunks are scanned at once, each from zero; their last tokens make a
recurrence of the same kind, T / 16 long, which is solved likewise; then each chunk is told what enters it, times the
product of its decays up to each token. That takes some 30 steps for each factor of 16 in T, nothing is divided by a
decay, and no decay is too strong or too weak. The gradient of h is the same recurrence, backwards:
`dh_t = dy_t + exp(log_a_(t+1)) dh_(t+1)`.

Where ranks share out the tokens, they tell each other what each span makes of a state, `h -> change h + left`, before
they scan it, and likewise what it makes of a gradient, before they scan that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bakeoff.interfaces.spans import Spans
from bakeoff.parts.spans import relay

#: Tokens of a chunk: measured at T 256 to 8192.
_CHUNK = 16


def linear_scan(
    log_a: Tensor,
    b: Tensor,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(h, state)` of `log_a` <= 0 and `b`, both (B, T, C), in float32 or wider.

    `state` (B, C) is h before the first token; None: there is nothing before, and no state is returned. `segments`
    (B, T) counts the documents that began in the row: the state of one does not reach the next. A token with log_a = 0
    and b = 0 leaves the state as it is.

    `spans`: who has which tokens, where ranks share them out; there is no state, and they know their segments.
    """
    if b.shape[1] == 0:
        return b, state
    h, after = _LinearScan.apply(log_a, b, state, segments, spans)
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


def entering(a: Tensor, b: Tensor, spans: Spans) -> Tensor:
    """h before each of this rank's spans, (spans, B, C). Not differentiable."""
    told = [composed(*piece) for piece in zip(spans.split(a), spans.split(b), strict=True)]
    return torch.stack(relay(told, _follow, torch.zeros_like(told[0][1]), spans))


def recur_(a: Tensor, b: Tensor, state: Tensor | None, spans: Spans | None = None) -> Tensor:
    """h of the recurrence; `b` becomes it. Not differentiable: `recur_backward` gives the gradient of `b`.

    `state` (B, C) is h before the first token; with `spans`, what `entering` says.
    """
    if spans is not None:
        for piece in zip(spans.split(a), spans.split(b), _of_each(state, spans), strict=True):
            recur_(*piece)
        return b
    if state is not None:
        b[:, 0].addcmul_(a[:, 0], state)
    sweep_(b, a.clone())
    return b


def recur_backward(a: Tensor, dh: Tensor, dafter: Tensor | None, spans: Spans | None = None) -> Tensor:
    """The gradient of `b`, from those of h by what reads it, and of the last h by what reads it as the state.

    With `spans`, later ones of the row read the last h of each.
    """
    if spans is not None:
        pieces = list(zip(spans.split(a), spans.split(dh), strict=True))
        told = [composed(decay, decay * given, reverse=True) for decay, given in pieces]
        later = relay(told, _follow, torch.zeros_like(told[0][1]), spans, reverse=True)
        return torch.cat([recur_backward(*piece, given) for piece, given in zip(pieces, later, strict=True)], 1)
    db = dh.clone(memory_format=torch.contiguous_format)
    if dafter is not None:
        db[:, -1] += dafter
    following = torch.empty_like(a)
    following[:, :-1] = a[:, 1:]
    following[:, -1] = 0
    sweep_(db, following, reverse=True)
    return db


def composed(a: Tensor, b: Tensor, *, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """`(change, left)`, each (B, C), of `h -> a_t h + b_t` after each other from the first token on, or from the last.

    The h after all of them is `change h + left`. Neighbours are composed, then neighbours of these, and so on: no
    token's h is computed, and two multiply-adds are done for each.
    """
    change, left = torch.ones_like(a[:, 0]), torch.zeros_like(b[:, 0])
    first, second = (1, 0) if reverse else (0, 1)
    while a.shape[1]:
        if a.shape[1] % 2:
            single = 0 if reverse else -1
            left, change = torch.addcmul(left, change, b[:, single]), change * a[:, single]
            a, b = (x[:, 1:] if reverse else x[:, :-1] for x in (a, b))
        b = torch.addcmul(b[:, second::2], a[:, second::2], b[:, first::2])
        a = a[:, first::2] * a[:, second::2]
    return change, left


def continues(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where a token belongs to the document of the one before it, (B, T, 1); `segments` as in `linear_scan`."""
    previous = torch.nn.functional.pad(segments[:, :-1], (1, 0))
    return (segments == previous)[:, :, None].to(dtype)


def before(h: Tensor, state: Tensor | None, spans: Spans | None = None) -> Tensor:
    """h of the token before, (B, T, C); `state` as for `recur_`."""
    if spans is not None:
        return torch.cat([before(*piece) for piece in zip(spans.split(h), _of_each(state, spans), strict=True)], 1)
    first = torch.zeros_like(h[:, :1]) if state is None else state[:, None]
    return torch.cat([first, h[:, :-1]], 1)


def _follow(h: Tensor, told: tuple[Tensor, ...]) -> Tensor:
    change, left = told
    return torch.addcmul(left, change, h)


def _of_each(state: Tensor | None, spans: Spans) -> list[Tensor]:
    assert state is not None
    assert len(state) == len(spans.own)
    return list(state)


class _LinearScan(torch.autograd.Function):
    """`linear_scan` and its gradient; keeps `exp(log_a)` and h."""

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, b: Tensor, state: Tensor | None, segments: Tensor | None, spans: Spans | None
    ) -> tuple[Tensor, Tensor]:
        a = log_a.exp()
        begun = [segments] if spans is None else [own.segments for own in spans.sequences]
        same = [continues(each, a.dtype) for each in begun if each is not None]
        if same:
            a *= torch.cat(same, 1)
        state = state if spans is None else entering(a, b, spans)
        h = recur_(a, b.clone(memory_format=torch.contiguous_format), state, spans)
        ctx.save_for_backward(a, h, state)
        ctx.spans = spans
        ctx.set_materialize_grads(False)
        return h, h[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor | None, dafter: Tensor | None) -> tuple[Tensor | None, ...]:
        a, h, state = ctx.saved_tensors
        db = recur_backward(a, torch.zeros_like(h) if dh is None else dh, dafter, ctx.spans)
        da = before(h, state, ctx.spans).mul_(db)
        dstate = None if state is None or ctx.spans is not None else a[:, 0] * db[:, 0]
        return da.mul_(a), db, dstate, None, None
