"""A norm of what heads read, and a gate on it."""

from __future__ import annotations

import torch
from bakeoff.interfaces import LayerContext, Part, init
from bakeoff.parts.activations import ActivationName, activation
from bakeoff.parts.norms import rms_norm
from torch import Tensor, nn


class GatedNorm(Part):
    """`w * rmsnorm(y) * f(z)` over the last dimension, of the context's width.

    Parameters
    ----------
    gate : f.
    eps : added to the mean square.
    """

    def __init__(self, context: LayerContext, *, gate: ActivationName = "silu", eps: float = 1e-5):
        super().__init__(context)
        self.gate, self.eps = gate, eps
        self.weight = nn.Parameter(torch.empty(context.d_model))

    def reset_parameters(self) -> None:
        """Gains of one."""
        init.fill(self.weight, init.constant(1.0))

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """Normalise `y`, float32 or wider, and gate it by `z`, both (..., N); the result has z's type."""
        return (rms_norm(y, self.weight.to(y.dtype), self.eps) * activation(self.gate)(z.to(y.dtype))).to(z.dtype)
