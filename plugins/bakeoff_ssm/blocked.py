"""The selective scan and its gradient by blocks of tokens that stay in the cache of a CPU core.

The states of all tokens, (B, T, N, E), are never held at once. A block is computed in place: its decays and updates,
then the recurrence, one position of all its chunks at a time, then what its chunks hand on to each other, then the
readout. Between blocks only the state that enters each is kept; the backward pass computes the rest again.

Letters: B batch, T tokens, E channels, N state size; of one block, r rows, g chunks of Q tokens each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Tokens of a chunk, at most: the recurrence inside chunks is a loop over so many positions.
CHUNK = 16
#: Numbers in a block: a megabyte of float32 where a cache of a core is to hold it, else what fills a device.
IN_CACHE, ON_DEVICE = 2**18, 2**26


class Inputs(NamedTuple):
    """`u` = dt x and `dt` (B, T, E); `B` and `C` (B, T, N); `same` (B, T), 0 where a document begins, or None."""

    u: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    same: Tensor | None


class Plan(NamedTuple):
    """How the work is cut: `channels` and `rows` at once, chunks of `length`, `chunks` of them in a block."""

    channels: int
    rows: int
    length: int
    chunks: int

    @classmethod
    def of(cls, u: Tensor, N: int) -> Plan:
        """Blocks of a size for the device of `u` (B, T, E)."""
        size = IN_CACHE if u.is_cpu else ON_DEVICE
        B, T, E = u.shape
        Q = max(1, min(CHUNK, T))
        strips = math.ceil(E / max(1, size // (Q * N)))
        channels = math.ceil(E / strips)
        rows = min(B, max(1, size // (Q * N * channels)))
        chunks = max(1, min(T // Q, size // (Q * N * channels * rows)))
        return cls(channels, rows, Q, chunks)

    def strips(self, B: int, E: int) -> Iterator[tuple[slice, slice]]:
        """Rows and channels that are scanned together, independent of all others."""
        for row in range(0, B, self.rows):
            for channel in range(0, E, self.channels):
                yield slice(row, row + self.rows), slice(channel, channel + self.channels)

    def blocks(self, T: int) -> list[tuple[int, int, int]]:
        """First token, chunks, and tokens in a chunk, of consecutive blocks; fewer than Q tokens are a chunk too."""
        whole, rest = divmod(T, self.length)
        found = [(i * self.length, min(self.chunks, whole - i), self.length) for i in range(0, whole, self.chunks)]
        return [*found, (T - rest, 1, rest)] if rest else found


def most_blocks(T: int) -> int:
    """As many as there can be: the place that is kept for the states that enter them."""
    return -(-T // CHUNK)


class Blocked(torch.autograd.Function):
    """`apply(u, dt, A, B, C, state, same) -> (y, state)`.

    `u` and `dt` (B, T, E); `A` (N, E); `B` and `C` (B, T, N); `state` (B, N, E) or None for zeros; `same` (B, T), 0
    where a document begins and 1 elsewhere, or None.
    """

    @staticmethod
    def forward(ctx: Any, u, dt, A, B, C, state, same):  # type: ignore[no-untyped-def]
        u, dt, A, B, C = (t.contiguous() for t in (u, dt, A, B, C))
        y, after, entering = scan_by_blocks(u, dt, A, B, C, state, same, any(ctx.needs_input_grad))
        ctx.save_for_backward(u, dt, A, B, C, same, entering)
        return y, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy, dafter):  # type: ignore[no-untyped-def]
        u, dt, A, B, C, same, entering = ctx.saved_tensors
        with torch.autocast(dy.device.type, enabled=False):
            *grads, dstate = scan_backward_by_blocks(u, dt, A, B, C, same, entering, dy.contiguous(), dafter)
        return *grads, dstate if ctx.needs_input_grad[5] else None, None


# Each a single operator to what compiles or plans a model, neither of which looks at the blocks.
@torch.library.custom_op("bakeoff_ssm::selective_scan", mutates_args=())
def scan_by_blocks(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor | None, same: Tensor | None, kept: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last state, and the states that enter the blocks, none unless they are to be `kept`."""
    given, plan = Inputs(u, dt, B, C, same), Plan.of(u, A.shape[0])
    blocks = plan.blocks(u.shape[1])
    y = torch.empty_like(u)
    after = u.new_zeros(u.shape[0], *A.shape) if state is None else _own(state)
    entering = u.new_empty(most_blocks(u.shape[1]) * kept, *after.shape)
    space = [u.new_empty(plan.rows * plan.chunks * plan.length, A.shape[0], plan.channels) for _ in range(2)]
    for rows, channels in plan.strips(u.shape[0], u.shape[2]):
        held, rates = after[rows, :, channels], A[:, channels]
        for i, (start, g, Q) in enumerate(blocks):
            if kept:
                entering[i, rows, :, channels] = held
            part = _part(given, rows, channels, start, g, Q)
            _, h = _states(part, rates, held, space, space[0])
            held.copy_(h[:, -1, -1])
            y[rows, start : start + g * Q, channels] = _sum_states(part.C, h)
    return y, after, entering


@scan_by_blocks.register_fake
def _(u, dt, A, B, C, state, same, kept):  # type: ignore[no-untyped-def]
    after = u.new_empty(u.shape[0], *A.shape)
    return torch.empty_like(u), after, u.new_empty(most_blocks(u.shape[1]) * kept, *after.shape)


@torch.library.custom_op("bakeoff_ssm::selective_scan_backward", mutates_args=())
def scan_backward_by_blocks(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    same: Tensor | None,
    entering: Tensor,
    dy: Tensor,
    dafter: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, B, C and of the first state."""
    given, plan = Inputs(u, dt, B, C, same), Plan.of(u, A.shape[0])
    du, ddt, dB, dC = (torch.zeros_like(t) for t in given[:4])
    dA, dstate = torch.zeros_like(A), _own(dafter)
    tokens = plan.rows * plan.chunks * plan.length
    space = [dy.new_empty(tokens, A.shape[0], plan.channels) for _ in range(3 if plan.chunks == 1 else 4)]
    for rows, channels in plan.strips(dy.shape[0], dy.shape[2]):
        carried, rates = dstate[rows, :, channels], A[:, channels]
        for i, (start, g, Q) in reversed(list(enumerate(plan.blocks(dy.shape[1])))):
            held, span = entering[i, rows, :, channels], slice(start, start + g * Q)
            part = _part(given, rows, channels, start, g, Q)
            keep, h = _states(part, rates, held, space, space[2])
            here = dy[rows, span, channels].unflatten(1, (g, Q))
            dh = _state_gradients(part, here, keep, carried, space)
            du[rows, span, channels] = _sum_states(part.B, dh)
            dB[rows, span] += _sum_channels(part.u, dh)
            dC[rows, span] += _sum_channels(here, h)
            through = _decay_gradients(keep, h, dh, held)
            dA[:, channels] += torch.mul(through, part.dt[..., None, :], out=dh).flatten(0, 2).sum(0)
            ddt[rows, span, channels] = through.mul_(rates).sum(-2).flatten(1, 2)
    return du, ddt, dA, dB, dC, dstate


@scan_backward_by_blocks.register_fake
def _(u, dt, A, B, C, same, entering, dy, dafter):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(t) for t in (u, dt, A, B, C, dafter))


def _own(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.contiguous_format)


def _part(given: Inputs, rows: slice, channels: slice, start: int, g: int, Q: int) -> Inputs:
    """A block of the inputs, tokens as (r, g, Q, ...)."""
    span = slice(start, start + g * Q)
    u, dt = (t[rows, span, channels].unflatten(1, (g, Q)) for t in (given.u, given.dt))
    B, C = (t[rows, span].unflatten(1, (g, Q)) for t in (given.B, given.C))
    same = None if given.same is None else given.same[rows, span].unflatten(1, (g, Q))
    return Inputs(u, dt, B, C, same)


def _room(space: Tensor, part: Inputs) -> Tensor:
    """(r, g, Q, N, E) of a block in memory that is there."""
    r, g, Q, E = part.u.shape
    N = part.B.shape[-1]
    return space.view(-1)[: r * g * Q * N * E].view(r, g, Q, N, E)


def _states(part: Inputs, A: Tensor, held: Tensor, space: list[Tensor], spare: Tensor) -> tuple[Tensor, Tensor]:
    """Decays and states (r, g, Q, N, E) after each token; `spare` may be the decays' memory if they are not read."""
    keep, h = _room(space[0], part), _room(space[1], part)
    torch.mul(part.dt[..., None, :], A * math.log2(math.e), out=keep).exp2_()
    if part.same is not None:
        keep.mul_(part.same[..., None, None])
    torch.mul(part.u[..., None, :], part.B[..., None], out=h)
    keeps, hs = keep.unbind(2), h.unbind(2)
    hs[0][:, 0].addcmul_(keeps[0][:, 0], held)
    for t in range(1, len(hs)):
        hs[t].addcmul_(keeps[t], hs[t - 1])
    if h.shape[1] > 1:
        since = _room(spare, part)  # decay since the chunk before
        sinces = since.unbind(2)
        sinces[0].copy_(keeps[0])
        for t in range(1, len(hs)):
            torch.mul(sinces[t - 1], keeps[t], out=sinces[t])
        for c in range(1, h.shape[1]):
            h[:, c].addcmul_(since[:, c], h[:, c - 1, -1:])
    return keep, h


def _state_gradients(part: Inputs, dy: Tensor, keep: Tensor, carried: Tensor, space: list[Tensor]) -> Tensor:
    """Gradients of the states (r, g, Q, N, E); `carried` is that of the last and becomes that of the one before."""
    dh = _room(space[2], part)
    torch.mul(dy[..., None, :], part.C[..., None], out=dh)
    keeps, dhs = keep.unbind(2), dh.unbind(2)
    dhs[-1][:, -1] += carried
    for t in range(len(dhs) - 2, -1, -1):
        dhs[t].addcmul_(keeps[t + 1], dhs[t + 1])
    if dh.shape[1] > 1:
        until = _room(space[3], part)  # decay until the chunk's last token
        untils = until.unbind(2)
        untils[-1].fill_(1.0)
        for t in range(len(dhs) - 2, -1, -1):
            torch.mul(untils[t + 1], keeps[t + 1], out=untils[t])
        for c in range(dh.shape[1] - 2, -1, -1):
            dh[:, c].addcmul_(until[:, c], (keep[:, c + 1, 0] * dh[:, c + 1, 0])[:, None])
    torch.mul(keeps[0][:, 0], dhs[0][:, 0], out=carried)
    return dh


def _decay_gradients(keep: Tensor, h: Tensor, dh: Tensor, held: Tensor) -> Tensor:
    """Gradients of the logarithms of the decays, written over the decays."""
    keep[:, :, 1:].mul_(h[:, :, :-1])
    keep[:, 1:, 0].mul_(h[:, :-1, -1])
    keep[:, 0, 0].mul_(held)
    return keep.mul_(dh)


def _sum_states(weights: Tensor, h: Tensor) -> Tensor:
    """`sum_n w_n h_n`: (r, g, Q, N) and (r, g, Q, N, E) give (r, gQ, E)."""
    return torch.bmm(weights.flatten(0, 2)[:, None], h.flatten(0, 2)).view(h.shape[0], -1, h.shape[-1])


def _sum_channels(weights: Tensor, h: Tensor) -> Tensor:
    """`sum_e w_e h_e`: (r, g, Q, E) and (r, g, Q, N, E) give (r, gQ, N)."""
    return torch.bmm(weights.flatten(0, 2)[:, None], h.flatten(0, 2).mT).view(h.shape[0], -1, h.shape[-2])
