"""The two-layer feed-forward."""

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


class MLP(FeedForward):
    """`act(x W_up) W_down`; `width` is 4 D unless given."""

    reference = Reference("Vaswani et al.", 2017, "Attention Is All You Need", "https://arxiv.org/abs/1706.03762")
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
        activation: ActivationName = "gelu",
        bias: bool = False,
    ):
        super().__init__(context)
        self.width = 4 * context.d_model if width is None else width
        self.activation = activation_called(activation)
        self.up = Linear(context.d_model, self.width, bias=bias)
        self.down = Linear(self.width, context.d_model, bias=bias, role="output")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with every option."""
        return [{}, {"width": 24, "activation": "squared_relu", "bias": True}]

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        return Result(self.down(self.activation(self.up(x))), state)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the inner channels."""
        return columns(self, "up") | rows(self, "down")

    def flops(self, queries: int, keys: int) -> int:
        """Both products."""
        return linear_flops(self.up, queries) + linear_flops(self.down, queries)
