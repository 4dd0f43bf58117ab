"""The residual block that norms what each branch gives."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.blocks.composed import Calls, NormedBlock


class ResPostNorm(NormedBlock):
    """`x = x + norm(mixer(x)); x = x + norm(feed_forward(x))`, as in Swin V2 and OLMo 2."""

    reference = Reference(
        "Liu et al.", 2022, "Swin Transformer V2: Scaling Up Capacity and Resolution", "https://arxiv.org/abs/2111.09883"
    )  # fmt: skip

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        call = Calls(sequence, state)
        if self.mixer is not None:
            x = x + self.dropout(self.mixer_norm(call("mixer", self.mixer, x)))
        if self.feed_forward is not None:
            x = x + self.dropout(self.feed_forward_norm(call("feed_forward", self.feed_forward, x)))
        return call.result(x)
