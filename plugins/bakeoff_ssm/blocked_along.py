"""The selective scan over rows whose tokens ranks share out.

What a span of tokens leaves is linear in the state that enters it, `h' = change h + left`. Ranks tell each other both,
which takes a sum over tokens and no scan, and then scan each span once, from the state that enters it. Backward they
tell each other likewise what a span makes of the gradient of the state that leaves it, `dh = change dh' + own`:

    left = sum_t exp(A r_t) B_t u_t        own = sum_t exp(A s_t) C_t dy_t        change = exp(A sum_t dt_t)

where r_t are the steps after t and s_t those up to t, and only tokens count that share a document with the span's last
one, or with the token before the span; change is 0 where a document begins in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.scans.elementwise import continues
from bakeoff.parts.spans import relay
from torch import Tensor
from torch.autograd.function import once_differentiable

from bakeoff_ssm.blocked import Plan, scan_backward_by_blocks, scan_by_blocks


class BlockedAlong(torch.autograd.Function):
    """`apply(u, dt, A, B, C, spans) -> y`, as `Blocked`, of this rank's tokens."""

    @staticmethod
    def forward(ctx: Any, u, dt, A, B, C, spans):  # type: ignore[no-untyped-def]
        A, kept = A.contiguous(), any(ctx.needs_input_grad)
        pieces = [[own.contiguous() for own in spans.split(t)] for t in (u, dt, B, C)]
        entering = _relayed(pieces[0], pieces[1], A, pieces[2], spans)
        saved, y = [], []
        for *given, own, state in zip(*pieces, spans.sequences, entering, strict=True):
            same = None if own.segments is None else continues(own.segments, u.dtype)[:, :, 0]
            found, _, within = scan_by_blocks(*given[:2], A, *given[2:], state, same, kept)
            saved += [*given, same, within]
            y.append(found)
        ctx.save_for_backward(A, *saved)
        ctx.spans = spans
        return torch.cat(y, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy):  # type: ignore[no-untyped-def]
        A, *saved = ctx.saved_tensors
        pieces = [saved[i : i + 6] for i in range(0, len(saved), 6)]
        dys = [own.contiguous() for own in ctx.spans.split(dy)]
        with torch.autocast(dy.device.type, enabled=False):
            _, dt, _, C, _, _ = zip(*pieces, strict=True)
            leaving = _relayed(dys, dt, A, C, ctx.spans, reverse=True)
            grads = [
                scan_backward_by_blocks(u, dt, A, B, C, same, within, own, dafter)
                for (u, dt, B, C, same, within), own, dafter in zip(pieces, dys, leaving, strict=True)
            ]
        du, ddt, dA, dB, dC, _ = zip(*grads, strict=True)
        return torch.cat(du, 1), torch.cat(ddt, 1), sum(dA), torch.cat(dB, 1), torch.cat(dC, 1), None


def _relayed(
    u: Sequence[Tensor], dt: Sequence[Tensor], A: Tensor, B: Sequence[Tensor], spans: Spans, *, reverse: bool = False
) -> list[Tensor]:
    """The states (B, N, E) that enter this rank's spans, of what writes to them; or gradients of those that leave."""
    told = []
    for given, steps, weights, own in zip(u, dt, B, spans.sequences, strict=True):
        through = steps.cumsum(1) if reverse else _after(steps)
        kept = steps.new_ones(len(steps), 1, 1)
        if own.segments is not None:
            kept = (own.segments[:, -1] == 0).to(steps.dtype)[:, None, None]
            given = given * (own.segments == (0 if reverse else own.segments[:, -1:]))[..., None]
        told.append((kept, steps.sum(1), weighted(given, through, A, weights)))

    def follow(state: Tensor, told: tuple[Tensor, ...]) -> Tensor:
        kept, steps, own = told
        return torch.addcmul(own, (steps[:, None] * A).exp() * kept, state)

    return relay(told, follow, torch.zeros_like(told[0][-1]), spans, reverse=reverse)


def _after(dt: Tensor) -> Tensor:
    """The steps after each token, (B, T, E)."""
    since = dt.flip(1).cumsum(1).flip(1)
    return torch.cat([since[:, 1:], torch.zeros_like(dt[:, :1])], 1)


def weighted(u: Tensor, steps: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """`sum_t exp(A steps_t) B_t u_t`, (B, N, E), of `u` and `steps` (B, T, E), `A` (N, E), `B` (B, T, N), by blocks."""
    plan, rates = Plan.of(u, A.shape[0]), A * math.log2(math.e)
    tokens = plan.chunks * plan.length
    total = u.new_zeros(u.shape[0], *A.shape)
    space = u.new_empty(plan.rows * tokens * A.shape[0] * plan.channels)
    for rows, channels in plan.strips(u.shape[0], u.shape[2]):
        for start in range(0, u.shape[1], tokens):
            here = slice(start, start + tokens)
            given = u[rows, here, channels]
            shape = (*given.shape[:2], *A[:, channels].shape)
            each = space[: math.prod(shape)].view(shape)
            torch.mul(steps[rows, here, None, channels], rates[:, channels], out=each).exp2_()
            each.mul_(given[:, :, None])
            total[rows, :, channels] += torch.einsum("btn,btne->bne", B[rows, here], each)
    return total
