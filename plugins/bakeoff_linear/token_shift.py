"""The token before each, over packed and padded rows, with the state that continues it."""

from __future__ import annotations

import torch
from bakeoff.interfaces import Sequence
from bakeoff.parts.short_convolution import next_tail
from torch import Tensor
from torch.nn import functional as F


def token_before(x: Tensor, sequence: Sequence, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Of each of `x` (B, T, D) the real token before it in its document, zeros for a first one; and the state after.

    The state is the last real token, (B, 1, D), zeros where there was none.
    """
    if sequence.real is not None:
        x = x * sequence.real[:, :, None].to(x.dtype)
    tail = torch.zeros_like(x[:, :1]) if state is None else state.to(x.dtype)
    before = torch.cat([tail, x[:, :-1]], 1)
    segments = sequence.segments
    if segments is not None:
        before = before * (segments == F.pad(segments[:, :-1], (1, 0)))[:, :, None].to(x.dtype)
    return before, None if state is None else next_tail(state, x, segments, sequence.real)
