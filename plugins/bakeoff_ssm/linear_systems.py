"""Linear state-space models that are the same at every token: by convolution, by chunks, by one token, naively.

All compute, for each of D channels with n conjugate pairs of states, and with s_(-1) the given state or 0:

    s_t = A s_(t-1) + B u_t        y_t = 2 Re(C s_t)

so that y is u convolved with `K_l = 2 Re(C A^l B)` where there is no state before (Gu et al., 2021, arXiv:2111.00396).
`u` is (B, T, D), a state (B, D, n) complex. `segments` (B, T) counts the documents that began in `u`: the state of one
does not reach the next.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from bakeoff.parts.short_convolution import short_convolution
from torch import Tensor
from torch.nn import functional as F

from bakeoff_ssm.transitions import Dense, Diagonal, LowRank, paired, real

#: Tokens of a chunk, a power of two.
CHUNK = 32


class System(NamedTuple):
    """A model in discrete time: its transition `A`, and `B` and `C` (D, n) complex."""

    A: Diagonal | LowRank
    B: Tensor
    C: Tensor


def squares(A: Diagonal | Dense, most: int) -> list[Any]:
    """A, A^2, A^4, …, the last the least at or above A^most."""
    found: list[Any] = [A]
    while 1 << (len(found) - 1) < most:
        found.append(found[-1].squared())
    return found


def orbit(powers: list[Any], v: Tensor, count: int) -> Tensor:
    """`v`, `A v`, `A^2 v`, …, stacked in front, `count` of them, by the `squares` of A."""
    rows = v[None]
    for A in powers:
        if rows.shape[0] < count:
            rows = torch.cat([rows, A.advance(rows)])
    return rows[:count]


def kernel(system: System, T: int) -> Tensor:
    """`K_l` for l below T, (D, T)."""
    return response(squares(system.A.explicit(), T), system.C, system.B, T)


def response(powers: list[Any], C: Tensor, s: Tensor, T: int) -> Tensor:
    """`2 Re(C A^l s)` for l below T, (…, D, T), of `s` (…, D, n): products of powers up to sqrt(T) and beyond."""
    q = (T - 1).bit_length() // 2
    read = orbit([A.transposed() for A in powers[:q]], 2 * C.conj(), 2**q)
    written = orbit(powers[q:], s, -(-T // 2**q))
    K = real(written).movedim(0, -2) @ real(read).permute(1, 2, 0)  # (…, D, T / Q, Q)
    return K.flatten(-2)[..., :T]


def convolve(u: Tensor, K: Tensor) -> Tensor:
    """`y_t = sum_l K_l u_(t-l)` by Fourier transforms, rows filled up with zeros so that nothing wraps around."""
    T = u.shape[1]
    spectrum = torch.fft.rfft(u.mT, n=2 * T) * torch.fft.rfft(K, n=2 * T)
    return torch.fft.irfft(spectrum, n=2 * T)[..., :T].mT


def scan(
    u: Tensor,
    system: System,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` by chunks: a short convolution inside each, and states from chunk to chunk.

    `lengths` (B,): only so many tokens of each row count for the state; None: all.
    """
    T = u.shape[1]
    if T == 0:
        return u, state
    Q = min(CHUNK, 1 << (T - 1).bit_length())
    n = -(-T // Q)
    place = torch.arange(n * Q, device=u.device) // Q
    u = F.pad(u, (0, 0, 0, n * Q - T))
    if segments is None:
        segments = torch.zeros(u.shape[:2], dtype=torch.long, device=u.device)
    else:
        segments = torch.cat([segments, segments[:, -1:].expand(-1, n * Q - T)], 1)
    powers = squares(system.A.explicit(), Q)
    A, leap = powers[0], powers[-1]
    read = orbit([power.transposed() for power in powers], 2 * system.C.conj(), Q)  # (Q, D, n), of states at the token
    written = orbit(powers, system.B, Q)
    K = (real(read) * real(system.B)).sum(-1)  # (Q, D)
    y = short_convolution(u, K.t().flip(1), segments=segments + place)
    cut, u = segments.unflatten(1, (n, Q)), u.unflatten(1, (n, Q))
    before = F.pad(cut[:, :-1, -1], (1, 0))[..., None]  # the document that enters each chunk
    reach, left = ((cut == other).to(u.dtype)[..., None] for other in (before, cut[:, :, -1:]))
    own = torch.einsum("bcqd,qdm->bcdm", u * left, real(written.flip(0)))
    held = u.new_zeros(u.shape[0], *system.B.shape, 2).flatten(-2) if state is None else real(state)
    entering = []
    for added, keep in zip(own.unbind(1), reach[:, :, -1:].unbind(1), strict=True):
        entering.append(held)
        held = added + keep * real(leap.advance(paired(held)))
    entered = torch.stack(entering, 1)
    first = torch.einsum("bcdm,qdm->bcqd", real(A.advance(paired(entered))), real(read))
    y = y + (first * reach).flatten(1, 2)
    return y[:, :T], None if state is None else _after(u, system, entered, held, cut, lengths, T)


def _after(
    u: Tensor, system: System, entered: Tensor, last: Tensor, cut: Tensor, lengths: Tensor | None, T: int
) -> Tensor:
    """The state after `lengths` tokens of each row: that before the chunk they end in, then token by token."""
    B, n, Q, _ = u.shape
    ends = torch.full((B,), T, device=u.device) if lengths is None else lengths
    chunk, rest = ends // Q, ends % Q
    rows, at = torch.arange(B, device=u.device), chunk.clamp(max=n - 1)
    tokens, here = u[rows, at], cut[rows, at]
    previous = F.pad(cut[:, :-1, -1], (1, 0))[rows, at]
    s = paired(torch.cat([entered, last[:, None]], 1)[rows, chunk])
    for j in range(T % Q if lengths is None else Q - 1):
        same = (here[:, j] == previous).to(u.dtype)[:, None, None]
        moved = system.A.advance(s * same) + tokens[:, j, :, None] * system.B
        s = torch.where((j < rest)[:, None, None], moved, s)
        previous = here[:, j]
    return s


def of_real_tokens(
    compute: Any, u: Tensor, system: System, state: Tensor | None, segments: Tensor | None, real: Tensor
) -> tuple[Tensor, Tensor | None]:
    """`compute` on rows whose real tokens have been moved to the left, as a model that decays knows no padding."""
    order = torch.argsort((~real).long(), dim=1, stable=True)
    place = (real.long().cumsum(1) - 1).clamp_min(0)
    moved = u.gather(1, order[..., None].expand_as(u))
    segments = None if segments is None else segments.gather(1, order)
    y, after = compute(moved, system, state=state, segments=segments, lengths=real.sum(1))
    return y.gather(1, place[..., None].expand_as(y)), after


def step(u: Tensor, system: System, *, state: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What `scan` computes for one token, `u` (B, 1, D)."""
    if segments is not None:
        state = state * (segments == 0)[:, :, None].to(u.dtype)
    s = system.A.advance(state) + u.mT * system.B
    return 2 * (system.C * s).real.sum(-1)[:, None], s


def scan_naive(
    u: Tensor,
    system: System,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What `scan` computes, one token after the other; its products are those that `flops` of the mixers counts."""
    s = u.new_zeros(u.shape[0], *system.B.shape, dtype=system.B.dtype) if state is None else state
    B, C = real(system.B)[:, None], real(2 * system.C.conj())[:, :, None]
    segment, rows = torch.zeros_like(u[:, 0, 0], dtype=torch.long), []
    for t in range(u.shape[1]):
        before = s
        if segments is not None:
            s = torch.where((segments[:, t] == segment)[:, None, None], s, 0)
            segment = segments[:, t]
        update = u[:, t, :, None, None] @ B  # (B, D, 1, 2n)
        s = system.A.advance(s) + paired(update[:, :, 0])
        rows.append((real(s)[:, :, None] @ C)[:, :, 0, 0])
        if lengths is not None:
            s = torch.where((t < lengths)[:, None, None], s, before)
    return torch.stack(rows, 1), None if state is None else s
