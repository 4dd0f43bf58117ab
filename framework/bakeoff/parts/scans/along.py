"""Scans along rows whose tokens ranks share out: each span by itself, and then what enters it.

A scan has a matrix state S (P, N) a head, linear in what was before; every span is scanned once, from an empty state,
which needs no other rank. Ranks then tell each other what each span makes of a state, `S' = S change + left`, and what
a span's tokens read of the state that enters it is added, one product a head:

    y_t = y_t of the span alone + S reads_t

so that a row in spans costs, beside one scan of it, what `decayed_along` and `changed_along` say. The scans take
`(q, k, v, …, state=, segments=)`, the state (B, H, P, N) and the others (B, T, H, …), in float32 or wider, and return
`(y, state)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff.interfaces.spans import Spans
from bakeoff.parts.spans import relay

Scan = Callable[..., tuple[Tensor, Any]]


class Passed(NamedTuple):
    """What a span does: `y` (B, T, H, P) of itself; `reads` (B, T, H, N) of the state that enters, None where none
    does; `change` of that, factors (B, H, 1, N or 1) or a matrix (B, H, N, N); and what it leaves of itself, `left`
    (B, H, P, N)."""

    y: Tensor
    reads: Tensor | None
    change: Tensor
    left: Tensor


def decayed_along(
    scan: Scan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    *,
    spans: Spans,
) -> Tensor:
    """`y` (B, T, H, P) of this rank's tokens, of a scan whose state decays by factors and is written to.

    log_a : log decays of at most 0, (B, T, H), (B, T, H, N), (H,) for all tokens, or None: `scan` is not given it then.

    Beside the scan of the spans: decays multiplied up over a span, and 2 P N multiply-adds a head and token.
    """

    def passed(
        first: bool, segments: Tensor | None, q: Tensor, k: Tensor, v: Tensor, log: Tensor | None = None
    ) -> Passed:
        decays = () if log_a is None else (log_a if log is None else log,)
        empty = v.new_zeros(v.shape[0], *v.shape[2:], q.shape[-1])
        y, left = scan(q, k, v, *decays, state=empty, segments=segments)
        kept = _kept(v, segments, *decays)
        return Passed(y, None if first else q * kept, kept[:, -1, :, None], left)

    by_token = log_a is not None and log_a.ndim > 1
    return _along(passed, spans, q, k, v, *([log_a] if by_token else []))


def changed_along(scan: Scan, q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None, spans: Spans) -> Tensor:
    """`y` (B, T, H, P) of this rank's tokens, of a scan whose state is changed by matrices, such as a delta rule.

    The state of each span but a row's first has N rows more, which begin as the identity and are written nothing: they
    end as the product of its changes, and what is read of them is what reads the state that enters. Beside the scan of
    the spans that costs N more channels of values in it, and 2 P N multiply-adds a head and token.
    """
    P, N = v.shape[-1], k.shape[-1]

    def passed(first: bool, segments: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None) -> Passed:
        if first:
            y, left = scan(q, k, v, *others, state=v.new_zeros(v.shape[0], v.shape[2], P, N), segments=segments)
            return Passed(y, None, left.new_zeros(*left.shape[:2], N, N), left)
        begin = torch.cat([v.new_zeros(P, N), torch.eye(N, dtype=v.dtype, device=v.device)])
        begin = begin.expand(v.shape[0], v.shape[2], -1, -1)
        y, after = scan(q, k, F.pad(v, (0, N)), *others, state=begin, segments=segments)
        return Passed(y[..., :P], y[..., P:], after[:, :, P:], after[:, :, :P])

    return _along(passed, spans, q, k, v, *others)


def _along(passed: Callable[..., Passed], spans: Spans, *given: Tensor | None) -> Tensor:
    pieces = zip(*([None] * len(spans.own) if t is None else spans.split(t) for t in given), strict=True)
    own = zip(spans.own, spans.sequences, pieces, strict=True)
    found = [passed(number == 0, sequence.segments, *piece) for number, sequence, piece in own]
    states = relay([(each.change, each.left) for each in found], _follow, torch.zeros_like(found[0].left), spans)
    return torch.cat([each.y + _read(each.reads, state) for each, state in zip(found, states, strict=True)], 1)


def _follow(state: Tensor, told: tuple[Tensor, ...]) -> Tensor:
    change, left = told
    return left + (state * change if change.shape[-2] == 1 else state @ change)


def _read(reads: Tensor | None, state: Tensor) -> Tensor:
    """(B, T, H, N) by (B, H, P, N) -> (B, T, H, P); of the empty state before a row a zero, which takes part."""
    return state.sum() if reads is None else (reads.transpose(1, 2) @ state.mT).transpose(1, 2)


def _kept(like: Tensor, segments: Tensor | None, log_a: Tensor | None = None) -> Tensor:
    """What each token finds left of the state that enters, (B, T, H, N or 1)."""
    B, T, H = like.shape[:3]
    kept = like.new_ones(B, T, H, 1)
    if log_a is not None:
        log_a = log_a.expand(B, T, H) if log_a.ndim == 1 else log_a
        kept = (log_a if log_a.ndim == 4 else log_a[..., None]).cumsum(1).exp()
    return kept if segments is None else kept * (segments == 0)[:, :, None, None].to(kept.dtype)
