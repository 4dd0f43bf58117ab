"""Kind `feed_forward`: what transforms each token's channels."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence


class FeedForward(StatefulPart):
    """A channel mixer (B, T, D) -> (B, T, D). Most keep no state: `stateless` says that any call stands alone."""

    kind = "feed_forward"
    stateless: bool = True

    def empty_state(self, batch: int, max_length: int, dtype: Any = None, device: Any = None) -> Any:
        """The empty nest, for a feed-forward whose tokens do not depend on each other."""
        if not self.stateless:
            return super().empty_state(batch, max_length, dtype, device)
        return ()

    @abstractmethod
    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """Transform `x` (B, T, D); a state comes out if and only if one goes in."""
