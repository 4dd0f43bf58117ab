"""What most routers have in common: a linear score for each expert, in float32."""

from __future__ import annotations

import torch
from bakeoff.interfaces import LayerContext, Router, Sequence
from bakeoff.parts.linear import Linear, linear_flops
from torch import Tensor
from torch.nn import functional as F

from bakeoff_moe.whole_rows import noise_like


class RouterLinear(Linear):
    """A linear layer that computes in float32, or wider, whatever the precision around it."""

    keep_float32 = ("weight", "bias")

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)."""
        with torch.autocast(x.device.type, enabled=False):
            kind = torch.promote_types(torch.promote_types(x.dtype, self.weight.dtype), torch.float32)
            return F.linear(x.to(kind), self.weight.to(kind), None if self.bias is None else self.bias.to(kind))


class ScoredRouter(Router):
    """A router of `scores` = x W (+ b).

    Parameters
    ----------
    jitter : in training, the router's input is multiplied by numbers uniform in [1 - jitter, 1 + jitter].
    """

    def __init__(self, context: LayerContext, *, bias: bool = False, jitter: float = 0.0):
        super().__init__(context)
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter is {jitter}; it must lie in 0 <= jitter < 1")
        self.jitter = jitter
        self.scores = RouterLinear(context.d_model, self.n_experts, bias=bias, role="gate")

    def logits(self, x: Tensor, sequence: Sequence) -> Tensor:
        """(B, T, D) -> (N, E), float32 or wider."""
        x = x.flatten(0, 1)
        if self.jitter and self.training:
            x = x * (1 + self.jitter * (2 * noise_like(x, sequence, torch.rand_like) - 1))
        return self.scores(x)

    def flops(self, queries: int, keys: int) -> int:
        """The scores."""
        return linear_flops(self.scores, queries)


def check_k(k: int, n_experts: int) -> None:
    """Raise `ValueError` unless a token can choose `k` of the experts."""
    if not 1 <= k <= n_experts:
        raise ValueError(f"k is {k}, n_experts {n_experts}; a token chooses 1 <= k <= n_experts experts")
