"""State-space duality: the scalar-decay recurrence of Mamba-2, by chunks and token by token.

All forms compute, for each head with width P and state (P, N), and with `a_t = exp(dt_t A)`:

    S_t = a_t S_(t-1) + dt_t x_t B_t^T        y_t = S_t C_t + D x_t

Within a chunk this is masked attention, `y = (L * C B^T) (dt x)` with `L_ij = a_(j+1) ... a_i`; between chunks the
state carries what is older (Dao and Gu, 2024, arXiv:2405.21060). Padding is a token with dt = 0.
"""

from __future__ import annotations

import torch
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
    batch, T, H, P = x.shape
    n = -(-T // chunk)
    Q = -(-T // n)  # the chunks share what is missing to a whole number
    u = x * dt[..., None]
    padding = n * Q - T
    log_a = dt * A
    if padding:
        u, log_a, B, C = (F.pad(t, (0, 0) * (t.ndim - 2) + (0, padding)) for t in (u, log_a, B, C))
        if segments is not None:
            segments = torch.cat([segments, segments[:, -1:].expand(-1, padding)], 1)
    G, N = B.shape[2:]
    u, log_a = u.view(batch, n, Q, H, P), log_a.view(batch, n, Q, H).transpose(2, 3)
    B, C = B.reshape(batch, n, Q, G, N), C.reshape(batch, n, Q, G, N)
    if segments is not None:
        segments = segments.view(batch, n, Q)
    total = log_a.cumsum(-1)
    # inside chunks
    scores = C.transpose(2, 3) @ B.permute(0, 1, 3, 4, 2)  # (B, n, G, Q, Q)
    weights = _decay(total, segments).unflatten(2, (G, -1)) * scores[:, :, :, None]
    y = (weights.flatten(2, 3) @ u.transpose(2, 3)).transpose(2, 3)  # (B, n, Q, H, P)
    # between chunks
    after = None
    if n > 1 or state is not None:
        entering, after = _carry(u, B, total, segments, state)
        reach = total if segments is None else total.masked_fill(_foreign(segments)[:, :, None], -torch.inf)
        old = C.transpose(2, 3) @ entering.unflatten(2, (G, -1)).flatten(3, 4).transpose(-1, -2)  # (B, n, G, Q, RP)
        y = y + old.transpose(2, 3).reshape(y.shape) * reach.transpose(2, 3).exp()[..., None]
    return y.reshape(batch, n * Q, H, P)[:, :T] + D[:, None] * x, after


def _decay(total: Tensor, segments: Tensor | None) -> Tensor:
    """`exp(total_i - total_j)` for j <= i in the same segment, else 0: (B, n, H, Q) -> (B, n, H, Q, Q)."""
    Q = total.shape[-1]
    hidden = torch.ones(Q, Q, dtype=torch.bool, device=total.device).triu(1)
    if segments is not None:
        hidden = (hidden | (segments[..., :, None] != segments[..., None, :]))[:, :, None]
    return (total[..., :, None] - total[..., None, :]).masked_fill(hidden, -torch.inf).exp()


def _foreign(segments: Tensor) -> Tensor:
    """Tokens that the state entering their chunk does not reach, (B, n, Q)."""
    before = F.pad(segments[:, :-1, -1], (1, 0))
    return segments != before[:, :, None]


def _carry(
    u: Tensor, B: Tensor, total: Tensor, segments: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """States (B, n, H, P, N) that enter each chunk, and the one that leaves the last where one entered the first."""
    batch, n, Q, H, P = u.shape
    G, N = B.shape[3:]
    left = total[..., -1:] - total
    if segments is not None:
        left = left.masked_fill((segments != segments[:, :, -1:])[:, :, None], -torch.inf)
    v = (u * left.transpose(2, 3).exp()[..., None]).reshape(batch, n, Q, G, -1)
    own = v.permute(0, 1, 3, 4, 2) @ B.transpose(2, 3)  # (B, n, G, RP, N)
    own = own.reshape(batch, n, H, P, N)
    keep = total[..., -1]
    if segments is not None:
        keep = keep.masked_fill(_foreign(segments)[:, :, -1:], -torch.inf)
    keep = keep.exp()
    held = torch.zeros_like(own[:, 0]) if state is None else state
    entering = []
    for i in range(n):
        entering.append(held)
        held = held * keep[:, i, :, None, None] + own[:, i]
    return torch.stack(entering, 1), None if state is None else held


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
    R = x.shape[2] // B.shape[2]
    keep = (dt * A).exp()
    if segments is not None:
        keep = keep * (segments == 0)[:, :, None].to(keep.dtype)
    u = (x * dt[..., None])[:, 0, :, :, None]
    B, C = (t[:, 0, :, None].expand(-1, -1, R, -1).flatten(1, 2) for t in (B, C))
    state = torch.addcmul(state * keep[:, 0, :, None, None], u, B[:, :, None])
    y = (state @ C[..., None])[..., 0]
    return (y + D[:, None] * x[:, 0])[:, None], state


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
