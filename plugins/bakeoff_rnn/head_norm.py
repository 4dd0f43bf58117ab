"""The norm of each head by itself."""

from __future__ import annotations

from typing import ClassVar

import torch
from bakeoff.interfaces import LayerContext, Part, init
from torch import Tensor, nn
from torch.nn import functional as F


class HeadNorm(Part):
    """Layer norm of each head's channels, and a gain for each channel: (B, T, H, P) -> (B, T, H P)."""

    roles: ClassVar[dict[str, str]] = {"weight": "vector"}

    def __init__(self, context: LayerContext, *, eps: float):
        super().__init__(context)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(context.d_model))

    def reset_parameters(self) -> None:
        """Gains of one."""
        init.fill(self.weight, init.constant(1.0))

    def forward(self, y: Tensor) -> Tensor:
        """Normalise `y`, in its type."""
        return F.layer_norm(y, y.shape[-1:], eps=self.eps).flatten(2) * self.weight.to(y.dtype)
