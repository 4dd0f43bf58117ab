"""Kind `block`: residual wiring of norms, a mixer, a feed-forward, or both."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence


class Block(StatefulPart):
    """One layer of a backbone, (B, T, D) -> (B, T, D), residual connections included."""

    kind = "block"

    @abstractmethod
    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """Transform `x` (B, T, D); a state comes out if and only if one goes in."""
