"""Norms over channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff.interfaces import init
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.norm import Norm

_TOKENWISE = Capabilities(
    documents=True, padding=True, state=True, constant_state=True, bidirectional=True, compile=True
)


class RMSNorm(Norm):
    """`x / sqrt(mean(x^2) + eps) * weight`, computed in float32 at least, in the type of `x`."""

    reference = Reference(
        "Zhang and Sennrich", 2019, "Root Mean Square Layer Normalization", "https://arxiv.org/abs/1910.07467"
    )
    capabilities = _TOKENWISE

    def __init__(self, context: LayerContext, *, eps: float = 1e-6):
        super().__init__(context)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(context.d_model))

    def reset_parameters(self) -> None:
        """Gains of one."""
        init.fill(self.weight, init.constant(1.0))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        weight = self.weight
        if x.dtype == weight.dtype == torch.float32 and not torch.is_grad_enabled():  # less to do for few tokens
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), weight.shape, weight.to(wide), self.eps).to(x.dtype)


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
        return F.rms_norm(x.to(wide), self.weight.shape, 1 + self.weight.to(wide), self.eps).to(x.dtype)


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
