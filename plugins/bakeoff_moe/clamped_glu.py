"""Feed-forward `clamped_glu`: a gated one whose gate and values cannot grow without bound."""

from __future__ import annotations

from typing import Any

from bakeoff.interfaces import Capabilities, Cut, FeedForward, LayerContext, Reference, Result, Sequence
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from torch import Tensor


class ClampedGLU(FeedForward):
    """`((u + 1) * g sigmoid(alpha g)) W_down`, of `g = min(x W_gate, limit)` and `u = x W_up` within `limit` of zero.

    Parameters
    ----------
    width : channels between.
    alpha : how sharp the gate is; 1.702 comes near to GELU.
    limit : the greatest gate, and the greatest size of what it multiplies.
    bias : all three products have one.

    Raises `ValueError` unless `limit` is positive.
    """

    reference = Reference("OpenAI", 2025, "gpt-oss-120b & gpt-oss-20b Model Card", "https://arxiv.org/abs/2508.10925")
    capabilities = Capabilities(
        documents=True,
        padding=True,
        state=True,
        constant_state=True,
        bidirectional=True,
        compile=True,
        token_local=True,
        context_parallel=True,
        tensor_parallel=True,
    )

    def __init__(
        self, context: LayerContext, *, width: int, alpha: float = 1.702, limit: float = 7.0, bias: bool = True
    ):
        super().__init__(context)
        if limit <= 0:
            raise ValueError(f"clamped_glu: limit is {limit}; it must be positive")
        self.width, self.alpha, self.limit = width, alpha, limit
        self.gate = Linear(context.d_model, width, bias=bias)
        self.up = Linear(context.d_model, width, bias=bias)
        self.down = Linear(width, context.d_model, bias=bias, role="output")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with limits that are met."""
        return [{"width": 24}, {"width": 16, "alpha": 1.0, "limit": 0.5, "bias": False}]

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        gate = self.gate(x).clamp(max=self.limit)
        up = self.up(x).clamp(-self.limit, self.limit)
        return Result(self.down((up + 1) * gate * (self.alpha * gate).sigmoid()), state)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the channels between."""
        return columns(self, "gate", "up") | rows(self, "down")

    def flops(self, queries: int, keys: int) -> int:
        """The three products."""
        return sum(linear_flops(layer, queries) for layer in (self.gate, self.up, self.down))
