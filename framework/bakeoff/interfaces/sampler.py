"""Kind `sampler`: how the next token is chosen."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from bakeoff.interfaces.component import Component


class Sampler(Component):
    """Chooses the next token of each row from its logits."""

    kind = "sampler"

    @abstractmethod
    def choose(self, logits: Tensor, seen: Tensor, generator: torch.Generator | None) -> Tensor:
        """Next ids (B,) from `logits` (B, V); `seen` (B, V) bool marks ids that a row holds already."""
