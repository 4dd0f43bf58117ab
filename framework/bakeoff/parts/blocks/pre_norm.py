"""The pre-norm residual block."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.blocks.composed import Calls, NormedBlock


class PreNorm(NormedBlock):
    """`x = x + mixer(norm(x)); x = x + feed_forward(norm(x))`, with dropout on each branch."""

    reference = Reference(
        "Xiong et al.",
        2020,
        "On Layer Normalization in the Transformer Architecture",
        "https://arxiv.org/abs/2002.04745",
    )

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        call = Calls(sequence, state)
        if self.mixer is not None:
            x = x + self.dropout(call("mixer", self.mixer, self.mixer_norm(x)))
        if self.feed_forward is not None:
            x = x + self.dropout(call("feed_forward", self.feed_forward, self.feed_forward_norm(x)))
        return call.result(x)
