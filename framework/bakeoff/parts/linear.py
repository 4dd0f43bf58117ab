"""Learned products. Values come from `interfaces.init`, so construction draws nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff.interfaces.cut import Cut, shares_of
from bakeoff.parts.products import linear


class Linear(nn.Linear):
    """`x W^T + b` whose weight has a role: hidden, input, output (writes into the residual stream), readout or gate."""

    summands: int = 1
    """How many ranks' results are added up: each of them adds its part of the bias."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool = False, role: str = "hidden"):
        super().__init__(d_in, d_out, bias=bias)
        self.roles = {"weight": role}

    def reset_parameters(self) -> None:
        """Nothing: `initialise` fills by role."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)."""
        return self.product(x, self.weight, self.bias)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """What `forward` gives, with any weight and bias in the place of the layer's own."""
        return linear(x, weight, bias if bias is None or self.summands == 1 else bias / self.summands)


def columns(part: nn.Module, *names: str, unit: int = 1) -> dict[str, Cut]:
    """A plan that shares out the outputs of a part's linear layers, in units that stay together; None is left out."""
    return {
        f"{name}.{kind}": Cut(0, unit)
        for name in names
        for kind in ("weight", "bias")
        if getattr(_layer(part, name), kind, None) is not None
    }


def rows(part: nn.Module, *names: str, unit: int = 1) -> dict[str, Cut]:
    """A plan that shares out what linear layers sum over; ranks' results are to be added up."""
    return {f"{name}.weight": Cut(1, unit) for name in names if _layer(part, name) is not None}


def _layer(part: nn.Module, name: str) -> nn.Module | None:
    owner, _, last = name.rpartition(".")
    return getattr(part.get_submodule(owner), last)


class Embedding(nn.Embedding):
    """A table (V, D) of vectors; role embedding. Of a share of it, tokens of other ranks get zeros."""

    def __init__(self, n: int, d: int):
        super().__init__(n, d)

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) long -> (..., D)."""
        share = shares_of(self).get("weight")
        if share is None or share.dim:
            return super().forward(tokens)
        ((start, stop),) = share.ranges
        own = (tokens >= start) & (tokens < stop)
        return F.embedding(torch.where(own, tokens - start, 0), self.weight) * own[..., None]

    def reset_parameters(self) -> None:
        """Nothing: `initialise` fills by role."""


def linear_flops(layer: nn.Module | None, tokens: int) -> int:
    """Two per multiply-add of a linear layer, and of its adapter, on `tokens` tokens; 0 for none."""
    if layer is None:
        return 0
    return 2 * tokens * sum(held.numel() for name, held in layer.named_parameters() if name.endswith("weight"))
