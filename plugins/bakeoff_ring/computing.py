"""The type that attention computes in."""

from __future__ import annotations

import torch
from torch import Tensor


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values in one type: that of autocast where it is on, else the widest of theirs."""
    kind = tensors[0].device.type
    widest = tensors[0].dtype
    for x in tensors[1:]:
        widest = torch.promote_types(widest, x.dtype)
    if torch.is_autocast_enabled(kind) and widest != torch.float64:
        widest = torch.get_autocast_dtype(kind)
    return tuple(x.to(widest) for x in tensors)
