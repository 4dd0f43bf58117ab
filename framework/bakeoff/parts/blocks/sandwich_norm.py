"""The block with a norm on both sides of each branch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.blocks.composed import Calls, FeedForwardFactory, MixerFactory, NormedBlock, NormFactory
from bakeoff.parts.norms import RMSNorm


class SandwichNorm(NormedBlock):
    """`x = x + norm(mixer(norm(x))); x = x + norm(feed_forward(norm(x)))`, four norms in all."""

    reference = Reference(
        "Ding et al.",
        2021,
        "CogView: Mastering Text-to-Image Generation via Transformers",
        "https://arxiv.org/abs/2105.13290",
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
        super().__init__(context, mixer=mixer, feed_forward=feed_forward, norm=norm, dropout=dropout)
        self.mixer_output_norm = self.norm_of(self.mixer, norm, context)
        self.feed_forward_output_norm = self.norm_of(self.feed_forward, norm, context)

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        call = Calls(sequence, state)
        if self.mixer is not None:
            x = x + self.dropout(self.mixer_output_norm(call("mixer", self.mixer, self.mixer_norm(x))))
        if self.feed_forward is not None:
            branch = call("feed_forward", self.feed_forward, self.feed_forward_norm(x))
            x = x + self.dropout(self.feed_forward_output_norm(branch))
        return call.result(x)
