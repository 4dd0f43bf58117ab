"""A learned product of low rank."""

from __future__ import annotations

import torch
from bakeoff.interfaces import LayerContext, Part, init
from bakeoff.parts.activations import ActivationName, activation
from bakeoff.parts.linear import Linear, linear_flops
from torch import Tensor


class LowRank(Part):
    """`f(x A) B`, which starts at zero.

    Parameters
    ----------
    width : channels of the result. rank : of A and B. inner : f.
    """

    def __init__(self, context: LayerContext, *, width: int, rank: int, inner: ActivationName = "identity"):
        super().__init__(context)
        self.inner = inner
        self.down = Linear(context.d_model, rank, role="gate")
        self.up = Linear(rank, width, role="gate")

    def reset_parameters(self) -> None:
        """A is zero; B is a tenth of an orthogonal matrix."""
        init.fill(self.down.weight, init.constant(0.0))
        init.fill(self.up.weight, _orthogonal)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., width)."""
        return self.up(activation(self.inner)(self.down(x)))

    def flops(self, queries: int, keys: int) -> int:
        """Both products."""
        return linear_flops(self.down, queries) + linear_flops(self.up, queries)


def _orthogonal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    gain = max(1.0, (shape[1] / shape[0]) ** 0.5)
    return torch.nn.init.orthogonal_(torch.empty(shape), gain=0.1 * gain, generator=generator)
