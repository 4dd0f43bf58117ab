"""A short convolution with a gate: the local mixer between the layers of Based."""

from __future__ import annotations

from typing import Any

from bakeoff.interfaces import Capabilities, Cut, LayerContext, Reference, Result, Sequence, SequenceMixer
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.short_convolution import ShortConvolution
from torch import Tensor


class GatedConvolution(SequenceMixer):
    """`W (silu(conv(W_x x)) * W_z x)`: each token sees the last few, and a gate says what of them.

    Parameters
    ----------
    expand : inner width over `d_model`.
    conv_width : taps of the convolution, the token itself included.
    bias : whether the projections have one.
    conv_bias : whether the convolution has one.
    """

    reference = Reference(
        "Arora et al.",
        2024,
        "Simple linear attention language models balance the recall-throughput tradeoff",
        "https://arxiv.org/abs/2402.18668",
    )
    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        expand: float = 2.0,
        conv_width: int = 3,
        bias: bool = True,
        conv_bias: bool = False,
    ):
        super().__init__(context)
        d, inner = context.d_model, round(expand * context.d_model)
        if inner < 1:
            raise ValueError(f"expand {expand} of d_model {d} gives {inner} inner channels; there must be at least 1")
        self.x = Linear(d, inner, bias=bias)
        self.z = Linear(d, inner, bias=bias, role="gate")
        self.convolve = ShortConvolution(context, channels=inner, width=conv_width, bias=conv_bias, activation="silu")
        self.output = Linear(inner, d, bias=bias, role="output")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As published, and narrow."""
        return [{}, {"expand": 0.5, "conv_width": 1, "bias": False, "conv_bias": True}]

    def empty_state(self, batch: int, max_length: int, dtype: Any = None, device: Any = None) -> Tensor:
        """Tail of the convolution, (B, conv_width - 1, inner)."""
        return self.convolve.empty_state(batch, max_length, dtype, device)

    def forward(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        return self._mix(x, sequence, state, ShortConvolution.__call__)

    def naive(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """The same, one token after the other."""
        return self._mix(x, sequence, state, ShortConvolution.naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: Tensor | None, convolve: Any) -> Result:
        y, after, *_ = convolve(self.convolve, self.x(x), sequence, state)
        return Result(self.output(y * self.z(x)), after)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the inner channels."""
        return columns(self, "x", "z", "convolve") | rows(self, "output")

    def flops(self, queries: int, keys: int) -> int:
        """Projections and convolution."""
        linear = sum(linear_flops(layer, queries) for layer in (self.x, self.z, self.output))
        return linear + self.convolve.flops(queries, keys)
