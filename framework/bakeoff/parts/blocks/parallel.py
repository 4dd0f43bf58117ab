"""The block whose mixer and feed-forward read the same input."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.blocks.composed import Calls, ComposedBlock, FeedForwardFactory, MixerFactory, NormFactory
from bakeoff.parts.norms import LayerNorm


class Parallel(ComposedBlock):
    """`x = x + mixer(norm(x)) + feed_forward(norm(x))`: one norm for both (GPT-J), or one each (GPT-NeoX)."""

    reference = Reference(
        "Black et al.",
        2022,
        "GPT-NeoX-20B: An Open-Source Autoregressive Language Model",
        "https://arxiv.org/abs/2204.06745",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory,
        feed_forward: FeedForwardFactory,
        norm: NormFactory = LayerNorm,
        shared_norm: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__(context, mixer=mixer, feed_forward=feed_forward, dropout=dropout)
        self.norm = norm(context)
        self.feed_forward_norm = None if shared_norm else norm(context)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """One norm for both parts, and one each."""
        parts = {"mixer": {"use": "attention", "n_heads": 4}, "feed_forward": {"use": "mlp"}}
        return [{**parts, "dropout": 0.2}, {**parts, "shared_norm": False}]

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        call = Calls(sequence, state)
        assert self.mixer is not None
        assert self.feed_forward is not None
        normed = self.norm(x)
        mixed = call("mixer", self.mixer, normed)
        other = normed if self.feed_forward_norm is None else self.feed_forward_norm(x)
        return call.result(x + self.dropout(mixed) + self.dropout(call("feed_forward", self.feed_forward, other)))
