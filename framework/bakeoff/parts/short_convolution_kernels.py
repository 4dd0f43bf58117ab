"""The short convolution on the kernels of `causal_conv1d`, with the signature of the form in torch."""

from __future__ import annotations

import torch
from causal_conv1d import causal_conv1d_fn
from torch import Tensor
from torch.nn import functional as F


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    tail: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """`bakeoff.parts.short_convolution.short_convolution`; the tail goes before `x`, as tokens of its first segment."""
    past = 0 if tail is None else tail.shape[1]
    if tail is not None:
        x = torch.cat([tail.to(x.dtype), x], 1)
    if segments is not None:
        segments = F.pad(segments, (past, 0)).int()
    y = causal_conv1d_fn(x.contiguous().mT, weight.contiguous(), bias, seq_idx=segments)
    return y.mT[:, past:]
