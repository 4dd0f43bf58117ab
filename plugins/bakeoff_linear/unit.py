"""Vectors of a given length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def unit(x: Tensor, length: float = 1.0, *, eps: float = 1e-6) -> Tensor:
    """`length * x / sqrt(sum x^2 + eps)` over the last dimension."""
    return _Unit.apply(x, length, eps) if torch.is_grad_enabled() else x * _inverse(x, eps).mul_(length)


def _inverse(x: Tensor, eps: float) -> Tensor:
    return x.square().sum(-1, keepdim=True).add_(eps).rsqrt_()


class _Unit(torch.autograd.Function):
    """With u = 1 / sqrt(sum x^2 + eps): dx = length u (dy - u^2 x (x . dy))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: float, eps: float) -> Tensor:
        inverse = _inverse(x, eps)
        ctx.save_for_backward(x, inverse)
        ctx.length = length
        return x * (inverse * length)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, inverse = ctx.saved_tensors
        along = (x * dy).sum(-1, keepdim=True).mul_(inverse.square())
        return torch.addcmul(dy, x, along, value=-1).mul_(inverse * ctx.length), None, None
