"""The selective scan of Mamba: every channel has a state of its own, and every token its own decay.

All forms compute, for each channel e with a state of N numbers:

    h_t = exp(dt_t A_e) h_(t-1) + dt_t x_t B_t        y_t = C_t h_t + D_e x_t

(Gu and Dao, 2023, arXiv:2312.00752). Padding is a token with dt = 0.
"""

from __future__ import annotations

import torch
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.scans.elementwise import continues
from torch import Tensor

from bakeoff_ssm.blocked import Blocked
from bakeoff_ssm.blocked_along import BlockedAlong


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` of `x` and `dt` (B, T, E), `A` (E, N), `B` and `C` (B, T, N), `D` (E,), by blocks of tokens.

    `state` (B, E, N) precedes `x`; None: there is nothing before, and no state is returned. `segments` (B, T) counts
    the documents that began in `x`: the state of one does not reach the next. `A` is negative, `dt` is not.
    `spans`: who has which tokens, where ranks share them out; there is no state, and they know their segments.
    """
    if spans is not None:
        return torch.addcmul(BlockedAlong.apply(dt * x, dt, A.mT, B, C, spans), x, D), None
    same = None if segments is None else continues(segments, x.dtype)[:, :, 0]
    held = None if state is None else state.mT
    y, after = Blocked.apply(dt * x, dt, A.mT, B, C, held, same)
    return torch.addcmul(y, x, D), None if state is None else after.mT


def selective_scan_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    state: Tensor,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `selective_scan` computes for one token: `x` (B, 1, E), and so on."""
    keep = (dt.mT * A).exp()
    if segments is not None:
        keep = keep * (segments == 0)[:, :, None].to(keep.dtype)
    held = torch.addcmul((dt * x).mT * B, keep, state)
    return torch.addcmul((held @ C.mT).mT, x, D), held


def selective_scan_naive(
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
    """What `selective_scan` computes, one token after the other; its products are those that `Mamba.flops` counts."""
    held = x.new_zeros(x.shape[0], *A.shape) if state is None else state
    segment, rows = torch.zeros_like(x[:, 0, 0], dtype=torch.long), []
    for t in range(x.shape[1]):
        if segments is not None:
            held = torch.where((segments[:, t] == segment)[:, None, None], held, 0)
            segment = segments[:, t]
        update = (dt[:, t] * x[:, t])[:, :, None] @ B[:, t, None]
        held = (dt[:, t, :, None] * A).exp() * held + update
        rows.append((held @ C[:, t, :, None])[..., 0] + D * x[:, t])
    return torch.stack(rows, 1), None if state is None else held
