"""Norms over channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff.interfaces import init
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.norm import Norm
from bakeoff.parts.collectives import summed_for_each

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_TOKENWISE = Capabilities(
    documents=True, padding=True, state=True, constant_state=True, bidirectional=True, compile=True
)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * gain`, computed in float32 at least, in the type of `x`.

    On a CPU torch's own takes twice as long, forward and backward.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    if not x.is_cpu or not x.dtype == wide == gain.dtype or torch.compiler.is_compiling():
        return F.rms_norm(x.to(wide), gain.shape, gain.to(wide), eps).to(x.dtype)
    return _RMSNorm.apply(x, gain, eps) if torch.is_grad_enabled() else _inverse_rms(x, eps).mul(x).mul_(gain)


def rms_norm_over(x: Tensor, gain: Tensor, eps: float, ranks: DeviceMesh) -> Tensor:
    """`rms_norm` of channels that ranks share out evenly: `x` and `gain` are this rank's."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = summed_for_each(wide.square().mean(-1, keepdim=True), ranks.get_group()) / ranks.size()
    return (wide * torch.rsqrt(mean + eps) * gain).to(x.dtype)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    """With n = x / rms and g = gain dy: dgain = sum(n dy), dx = (g - n mean(n g)) / rms."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        inverse = _inverse_rms(x, eps)
        ctx.save_for_backward(x, gain, inverse)
        ctx.eps = eps
        return (x * inverse).mul_(gain)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            plain = F.rms_norm(x, gain.shape, gain, ctx.eps)
            return *torch.autograd.grad(plain, (x, gain), dy, create_graph=True), None
        n = x * inverse
        each = n * dy  # (..., D)
        d_gain = each.flatten(0, -2).sum(0)
        mean = torch.mv(each.flatten(0, -2), gain).view_as(inverse).div_(x.shape[-1])
        return torch.mul(dy, gain, out=each).addcmul_(n, mean, value=-1).mul_(inverse), d_gain, None


class RMSNorm(Norm):
    """`x / sqrt(mean(x^2) + eps) * weight`, computed in float32 at least, in the type of `x`."""

    reference = Reference(
        "Zhang and Sennrich", 2019, "Root Mean Square Layer Normalization", "https://arxiv.org/abs/1910.07467"
    )
    capabilities = _TOKENWISE
    over: DeviceMesh | None = None
    """Ranks that hold equally many of the channels each; the mean is over those of all."""

    def __init__(self, context: LayerContext, *, eps: float = 1e-6):
        super().__init__(context)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(context.d_model))

    def reset_parameters(self) -> None:
        """Gains of one."""
        init.fill(self.weight, init.constant(1.0))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.normalised(x, self.weight)

    def normalised(self, x: Tensor, gain: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        if self.over is None:
            return rms_norm(x, gain, self.eps)
        return rms_norm_over(x, gain, self.eps, self.over)


class ZeroCentredRMSNorm(RMSNorm):
    """`x / sqrt(mean(x^2) + eps) * (1 + weight)`, so that weight decay draws the gain to one."""

    reference = Reference(
        "Gemma Team", 2024, "Gemma: Open Models Based on Gemini Research and Technology", "https://arxiv.org/abs/2403.08295"
    )  # fmt: skip

    def reset_parameters(self) -> None:
        """Gains of one."""
        init.fill(self.weight, init.constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return self.normalised(x, 1 + self.weight.to(wide))


class LayerNorm(Norm):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`, computed in float32 at least, in the type of `x`."""

    reference = Reference("Ba, Kiros and Hinton", 2016, "Layer Normalization", "https://arxiv.org/abs/1607.06450")
    capabilities = _TOKENWISE

    def __init__(self, context: LayerContext, *, eps: float = 1e-5, bias: bool = True):
        super().__init__(context)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(context.d_model))
        self.bias = nn.Parameter(torch.empty(context.d_model)) if bias else None

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With and without a bias."""
        return [{}, {"bias": False}]

    def reset_parameters(self) -> None:
        """Gains of one, biases of zero."""
        init.fill(self.weight, init.constant(1.0))
        if self.bias is not None:
            init.fill(self.bias, init.constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        return F.layer_norm(x.to(wide), self.weight.shape, self.weight.to(wide), bias, self.eps).to(x.dtype)
