"""Learned products. Values come from `interfaces.init`, so construction draws nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: `product_of_few` pays for at most so many bytes of rows, half of a core's first cache, and at least so many weights.
FEW, LARGE = 16384, 32768

#: Numbers in the rows from which oneDNN's product is the faster one.
MANY = 65536


class Linear(nn.Linear):
    """`x W^T + b` whose weight has a role: hidden, input, output (writes into the residual stream), readout or gate."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool = False, role: str = "hidden"):
        super().__init__(d_in, d_out, bias=bias)
        self.roles = {"weight": role}

    def reset_parameters(self) -> None:
        """Nothing: `initialise` fills by role."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)."""
        weight, bias = self.weight, self.bias
        if torch.is_grad_enabled():
            if not _many(x, weight):
                return F.linear(x, weight, bias)
            y = _Product.apply(x, weight)
        elif x.numel() > FEW or not _few(x, weight):
            return F.linear(x, weight, bias)
        else:
            y = product_of_few(x, weight)
        return y if bias is None else y + bias


def product_of_few(x: Tensor, weight: Tensor) -> Tensor:
    """`x W^T` with W on the left, which reads W up to twice as fast when a CPU multiplies few rows, as in decoding.

    A single row is multiplied twice over, as the library's product with a vector is the slower one.
    """
    *shape, width = x.shape
    rows = x.reshape(-1, width)
    if rows.shape[0] == 1:
        return torch.mm(weight, torch.cat((rows, rows)).t())[:, 0].contiguous().view(*shape, -1)
    return torch.mm(weight, rows.contiguous().t()).t().contiguous().view(*shape, -1)


def _few(x: Tensor, weight: Tensor) -> bool:
    """Whether `product_of_few` is the faster one: measured on MKL, in float32 and float64."""
    return (
        x.is_cpu
        and weight.numel() >= LARGE
        and max(x.numel(), 2 * x.shape[-1]) * x.element_size() <= FEW
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Product(torch.autograd.Function):
    """`x W^T` by oneDNN, and its gradient by x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, None, "none", [], "")

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        by_x, by_weight = ctx.needs_input_grad
        dx = _Product.apply(dy, weight.t()) if by_x else None
        return dx, torch.mm(dy.flatten(0, -2).t(), x.flatten(0, -2)) if by_weight else None


def _many(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is the faster one under gradients: it uses wider vectors than MKL does on some CPUs."""
    return (
        x.is_cpu
        and x.numel() >= MANY
        and weight.numel() >= LARGE
        and x.dtype == weight.dtype == torch.float32
        and type(weight.data) is type(x.data) is Tensor
        and torch.backends.mkldnn.is_available()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


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
