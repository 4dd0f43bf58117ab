"""Learned products. Values come from `interfaces.init`, so construction draws nothing."""

from __future__ import annotations

from torch import Tensor, nn

from bakeoff.parts.products import linear


class Linear(nn.Linear):
    """`x W^T + b` whose weight has a role: hidden, input, output (writes into the residual stream), readout or gate."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool = False, role: str = "hidden"):
        super().__init__(d_in, d_out, bias=bias)
        self.roles = {"weight": role}

    def reset_parameters(self) -> None:
        """Nothing: `initialise` fills by role."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)."""
        return linear(x, self.weight, self.bias)


class Embedding(nn.Embedding):
    """A table (V, D) of vectors; role embedding."""

    def __init__(self, n: int, d: int):
        super().__init__(n, d)

    def reset_parameters(self) -> None:
        """Nothing: `initialise` fills by role."""


def linear_flops(layer: nn.Module | None, tokens: int) -> int:
    """Two per multiply-add of a linear layer on `tokens` tokens; 0 for none."""
    if layer is None:
        return 0
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return 2 * weight.numel() * tokens
