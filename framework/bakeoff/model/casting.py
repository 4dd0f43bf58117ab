"""The type that a model's numbers are held in."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def cast(module: M, dtype: torch.dtype) -> M:
    """Give floating-point parameters and buffers `dtype`, in place; returns the module.

    What a part names in `keep_float32` becomes float32 where `dtype` is a lower one.
    """
    kept_type = torch.promote_types(dtype, torch.float32)
    for owner in module.modules():
        kept = getattr(owner, "keep_float32", ())
        for name, tensor in [*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)]:
            wanted = kept_type if name in kept else dtype
            if tensor.is_floating_point() and tensor.dtype != wanted:
                tensor.data = tensor.data.to(wanted)
    return module
