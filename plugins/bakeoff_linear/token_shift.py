"""The token before each, over packed and padded rows, with the state that continues it."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.interfaces import Sequence
from bakeoff.parts.scans.elementwise import continues
from bakeoff.parts.short_convolution import next_tail
from bakeoff.parts.spans import before_each
from torch import Tensor
from torch.autograd.function import once_differentiable

from bakeoff_linear.keyed_mixer import zero_padding


def token_before(x: Tensor, sequence: Sequence, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Of each of `x` (B, T, D) the real token before it in its document, zeros for a first one; and the state after.

    The state is the last real token, (B, 1, D), zeros where there was none.
    """
    x = zero_padding(x, sequence)
    if sequence.spans is not None:
        spans = sequence.spans
        given = zip(spans.split(x), before_each(x, 1, spans), spans.sequences, strict=True)
        return torch.cat([_shifted(piece, tail, own.segments) for piece, tail, own in given], 1), None
    tail = torch.zeros_like(x[:, :1]) if state is None else state.to(x.dtype)
    before = _shifted(x, tail, sequence.segments)
    return before, None if state is None else next_tail(state, x, sequence.segments, sequence.real)


def _shifted(x: Tensor, tail: Tensor, segments: Tensor | None) -> Tensor:
    before = torch.cat([tail, x[:, :-1]], 1)
    return before if segments is None else before * continues(segments, x.dtype)


def mixed(x: Tensor, before: Tensor, shares: list[Tensor]) -> tuple[Tensor, ...]:
    """`x + m (before - x)` (B, T, D), for each m (D,) of `shares`."""
    shares = [share.to(x.dtype) for share in shares]
    if torch.is_grad_enabled():
        return _Mixed.apply(x, before, *shares)
    change = before - x
    return tuple(torch.addcmul(x, change, share) for share in shares)


class _Mixed(torch.autograd.Function):
    """With change = before - x: dbefore = sum m dy, dx = sum dy - dbefore, dm = sum over tokens of change dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor, *shares: Tensor) -> tuple[Tensor, ...]:
        change = before - x
        ctx.save_for_backward(change, *shares)
        return tuple(torch.addcmul(x, change, share) for share in shares)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        change, *shares = ctx.saved_tensors
        dbefore = given[0] * shares[0]
        for dy, share in zip(given[1:], shares[1:], strict=True):
            dbefore.addcmul_(dy, share)
        dx = torch.sub(given[0], dbefore)
        for dy in given[1:]:
            dx += dy
        dshares = [torch.mul(change, dy).flatten(0, 1).sum(0) for dy in given]
        return dx, dbefore, *dshares
