"""State-space duality: the scalar-decay recurrence of Mamba-2, by chunks and token by token.

All forms compute, for each head with width P and state (P, N), and with `a_t = exp(dt_t A)`:

    S_t = a_t S_(t-1) + dt_t x_t B_t^T        y_t = S_t C_t + D x_t

Within a chunk this is masked attention, `y = (L * C B^T) (dt x)` with `L_ij = a_(j+1) ... a_i`; between chunks the
state carries what is older (Dao and Gu, 2024, arXiv:2405.21060). Padding is a token with dt = 0.
"""

from __future__ import annotations

from bakeoff.interfaces.spans import Spans
from bakeoff.parts.scans.scalar_decay import scalar_decay, scalar_decay_naive, scalar_decay_step
from torch import Tensor


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    chunk: int = 64,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` of `x` (B, T, H, P), `dt` (B, T, H), `A` and `D` (H,), `B` and `C` (B, T, G, N), by chunks.

    `state` (B, H, P, N) precedes `x`; None: there is nothing before, and no state is returned. `segments` (B, T) counts
    the documents that began in `x`: the state of one does not reach the next. H is a multiple of G.
    `spans`: who has which tokens, where ranks share them out; there is no state, and they know their segments.
    """
    return scalar_decay(C, B, x, dt * A, write=dt, skip=D, chunk=chunk, state=state, segments=segments, spans=spans)


def ssd_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    state: Tensor,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `ssd` computes for one token: `x` (B, 1, H, P), and so on."""
    y, after = scalar_decay_step(C, B, x * dt[..., None], dt * A, state=state, segments=segments)
    return y + D[:, None] * x, after


def ssd_naive(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What `ssd` computes, one token after the other; its products are those that `Mamba2.flops` counts."""
    y, after = scalar_decay_naive(C, B, x * dt[..., None], dt * A, state=state, segments=segments)
    return y + D[:, None] * x, after
