"""State-space duality: the scalar-decay recurrence of Mamba-2, by chunks and token by token.

All forms compute, for each head with width P and state (P, N), and with `a_t = exp(dt_t A)`:

    S_t = a_t S_(t-1) + dt_t x_t B_t^T        y_t = S_t C_t + D x_t

Within a chunk this is masked attention, `y = (L * C B^T) (dt x)` with `L_ij = a_(j+1) ... a_i`; between chunks the
state carries what is older (Dao and Gu, 2024, arXiv:2405.21060). Padding is a token with dt = 0.
"""

from __future__ import annotations

import torch
from bakeoff.parts.scans.scalar_decay import Chunked
from torch import Tensor
from torch.nn import functional as F


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
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` of `x` (B, T, H, P), `dt` (B, T, H), `A` and `D` (H,), `B` and `C` (B, T, G, N), by chunks.

    `state` (B, H, P, N) precedes `x`; None: there is nothing before, and no state is returned. `segments` (B, T) counts
    the documents that began in `x`: the state of one does not reach the next. H is a multiple of G.
    """
    T = x.shape[1]
    n = -(-T // chunk)
    Q = -(-T // n)  # the chunks share what is missing to a whole number
    padding = n * Q - T
    given = [x, dt, dt * A, B, C]
    if padding:
        given = [F.pad(t, (0, 0) * (t.ndim - 2) + (0, padding)) for t in given]
        if segments is not None:
            segments = torch.cat([segments, segments[:, -1:].expand(-1, padding)], 1)
    if segments is not None:
        segments = segments.unflatten(1, (n, Q))
    y, after = Chunked.apply(*(t.unflatten(1, (n, Q)) for t in given), D, state, segments)
    return y.flatten(1, 2)[:, :T], after


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
    groups = (B.shape[2], -1)
    keep = (dt * A).exp()
    if segments is not None:
        keep = keep * (segments == 0)[:, :, None].to(keep.dtype)
    u = (x * dt[..., None])[:, 0].unflatten(1, groups)
    held = (state * keep[:, 0, :, None, None]).unflatten(1, groups)  # (B, G, R, P, N)
    held.addcmul_(u[..., None], B[:, 0, :, None, None])
    y = held.flatten(2, 3) @ C[:, 0, :, :, None]
    return y.view_as(x) + D[:, None] * x, held.flatten(1, 2)


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
    batch, T, H, P = x.shape
    B, C = (t.repeat_interleave(H // t.shape[2], 2) for t in (B, C))
    held = x.new_zeros(batch, H, P, B.shape[-1]) if state is None else state
    rows = []
    segment = torch.zeros_like(dt[:, 0, 0], dtype=torch.long)
    for t in range(T):
        if segments is not None:
            held = torch.where((segments[:, t] == segment)[:, None, None, None], held, 0)
            segment = segments[:, t]
        update = (dt[:, t, :, None] * x[:, t])[..., None] @ B[:, t, :, None]
        held = (dt[:, t] * A).exp()[..., None, None] * held + update
        rows.append((held @ C[:, t, ..., None])[..., 0] + D[:, None] * x[:, t])
    return torch.stack(rows, 1), None if state is None else held
