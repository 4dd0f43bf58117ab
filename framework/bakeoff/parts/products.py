"""`x W^T + b` by the product that is fastest for its rows on a CPU; elsewhere, torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: Bytes of rows up to which `product_of_few` pays: half of a core's first cache.
FEW = 16384
#: Numbers in the rows from which oneDNN's product is the faster one under gradients.
MANY = 65536
#: Weights from which either pays.
LARGE = 32768

_HAS_ONEDNN = torch.backends.mkldnn.is_available()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(..., d_in), (d_out, d_in) and (d_out,) -> (..., d_out)."""
    if torch.is_grad_enabled():
        if not is_many(x, weight):
            return F.linear(x, weight, bias)
        y = _Product.apply(x, weight)
    elif x.numel() > FEW or not _few(x, weight):
        return F.linear(x, weight, bias)
    else:
        y = product_of_few(x, weight)
    return y if bias is None else y + bias


def product_of_few(x: Tensor, weight: Tensor) -> Tensor:
    """`x W^T` with W on the left, which reads W up to twice as fast when a CPU multiplies few rows, as in decoding.

    A single row is multiplied twice over, as the library's product with a vector is the slower one; the result is then
    every other number of what was computed.
    """
    *shape, width = x.shape
    rows = x.reshape(-1, width)
    if rows.shape[0] == 1:
        return torch.mm(weight, torch.cat((rows, rows)).t()).t()[:1].view(*shape, -1)
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


def product_of_many(x: Tensor, weight: Tensor) -> Tensor:
    """`x W^T` by oneDNN; worth it where `is_many` says so."""
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, None, "none", [], "")


@torch.library.custom_op("bakeoff::product_of_many", mutates_args=())
def _product_of_many(x: Tensor, weight: Tensor) -> Tensor:
    """The same, which compiled code calls as it is."""
    return product_of_many(x, weight)


@_product_of_many.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


class _Product(torch.autograd.Function):
    """`x W^T` by oneDNN, and its gradient by x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (_product_of_many if torch.compiler.is_compiling() else product_of_many)(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        by_x, by_weight = ctx.needs_input_grad
        dx = _Product.apply(dy, weight.t()) if by_x else None
        return dx, torch.mm(dy.flatten(0, -2).t(), x.flatten(0, -2)) if by_weight else None


def is_many(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is the faster one under gradients: it uses wider vectors than MKL does on some CPUs."""
    return (
        x.is_cpu
        and weight.numel() >= LARGE
        and x.numel() >= MANY
        and x.dtype == weight.dtype == torch.float32
        and type(weight.data) is type(x.data) is Tensor
        and _HAS_ONEDNN
        and not torch.is_autocast_enabled("cpu")
    )
