"""The post-norm residual block of the original transformer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.blocks.composed import Calls, FeedForwardFactory, MixerFactory, NormedBlock, NormFactory
from bakeoff.parts.norms import LayerNorm


class PostNorm(NormedBlock):
    """`x = norm(x + mixer(x)); x = norm(x + feed_forward(x))`; its backbone takes `norm: null`."""

    reference = Reference("Vaswani et al.", 2017, "Attention Is All You Need", "https://arxiv.org/abs/1706.03762")

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory | None,
        feed_forward: FeedForwardFactory | None,
        norm: NormFactory = LayerNorm,
        dropout: float = 0.0,
    ):
        super().__init__(context, mixer=mixer, feed_forward=feed_forward, norm=norm, dropout=dropout)

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        call = Calls(sequence, state)
        if self.mixer is not None:
            x = self.mixer_norm(x + self.dropout(call("mixer", self.mixer, x)))
        if self.feed_forward is not None:
            x = self.feed_forward_norm(x + self.dropout(call("feed_forward", self.feed_forward, x)))
        return call.result(x)
