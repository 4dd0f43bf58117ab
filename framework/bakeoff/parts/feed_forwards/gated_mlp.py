"""The gated feed-forward (GLU family)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.cut import Cut
from bakeoff.interfaces.feed_forward import FeedForward
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.activations import ActivationName
from bakeoff.parts.activations import activation as activation_called
from bakeoff.parts.linear import Linear, columns, linear_flops, rows


def gated_width(d_model: int, multiple_of: int) -> int:
    """Two thirds of 4 D, which has as many parameters as an ungated MLP of width 4 D, rounded up."""
    return -(-(8 * d_model // 3) // multiple_of) * multiple_of


class GatedMLP(FeedForward):
    """`(act(x W_gate) * x W_up) W_down`: SwiGLU (silu), GEGLU (gelu), ReGLU (relu), GLU (sigmoid), bilinear (identity).

    `width` is 8 D / 3 rounded up to `multiple_of` unless given.
    """

    reference = Reference("Shazeer", 2020, "GLU Variants Improve Transformer", "https://arxiv.org/abs/2002.05202")
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
        self,
        context: LayerContext,
        *,
        width: int | None = None,
        multiple_of: int = 64,
        activation: ActivationName = "silu",
        bias: bool = False,
    ):
        super().__init__(context)
        self.width = gated_width(context.d_model, multiple_of) if width is None else width
        self.activation = activation_called(activation)
        self.gate = Linear(context.d_model, self.width, bias=bias)
        self.up = Linear(context.d_model, self.width, bias=bias)
        self.down = Linear(self.width, context.d_model, bias=bias, role="output")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with every option."""
        return [{}, {"width": 24, "activation": "gelu", "bias": True}]

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        return Result(self.down(self.activation(self.gate(x)) * self.up(x)), state)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the inner channels."""
        return columns(self, "gate", "up") | rows(self, "down")

    def flops(self, queries: int, keys: int) -> int:
        """The three products."""
        return sum(linear_flops(layer, queries) for layer in (self.gate, self.up, self.down))
