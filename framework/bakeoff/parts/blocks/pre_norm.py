"""The pre-norm residual block."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.blocks.composed import Calls, ComposedBlock, FeedForwardFactory, MixerFactory, NormFactory
from bakeoff.parts.norms import RMSNorm


class PreNorm(ComposedBlock):
    """`x = x + mixer(norm(x)); x = x + feed_forward(norm(x))`, with dropout on each branch."""

    reference = Reference(
        "Xiong et al.",
        2020,
        "On Layer Normalization in the Transformer Architecture",
        "https://arxiv.org/abs/2002.04745",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory | None,
        feed_forward: FeedForwardFactory | None,
        norm: NormFactory = RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__(context, mixer=mixer, feed_forward=feed_forward, dropout=dropout)
        self.mixer_norm = self.norm_of(self.mixer, norm, context)
        self.feed_forward_norm = self.norm_of(self.feed_forward, norm, context)

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        call = Calls(sequence, state)
        if self.mixer is not None:
            x = x + self.dropout(call("mixer", self.mixer, self.mixer_norm(x)))
        if self.feed_forward is not None:
            x = x + self.dropout(call("feed_forward", self.feed_forward, self.feed_forward_norm(x)))
        return call.result(x)
