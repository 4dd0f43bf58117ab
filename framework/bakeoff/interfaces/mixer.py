"""Kind `mixer`: what moves information along the sequence."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence


class SequenceMixer(StatefulPart):
    """A map (B, T, D) -> (B, T, D) along the sequence.

    One path serves training, prefill, chunked prefill and decoding: with a state, the call continues where the state
    ends and returns the state after it; without, the past is empty and nothing is kept.
    """

    kind = "mixer"

    @abstractmethod
    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """Mix `x` (B, T, D) along T; a state comes out if and only if one goes in."""
