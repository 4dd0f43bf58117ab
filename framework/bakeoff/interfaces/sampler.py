"""Kind `sampler`: how the next token is chosen."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from bakeoff.interfaces.component import Component


class Sampler(Component):
    """Chooses the next token of each row from its logits, and of each row alone."""

    kind = "sampler"
    faithful: bool = False
    """Draws from the model's own distribution, the softmax of its logits, and from no other."""

    @abstractmethod
    def choose(self, logits: Tensor, seen: Tensor, uniform: Tensor) -> Tensor:
        """Next ids (B,) from `logits` (B, V).

        `seen` (B, V) bool marks ids that a row holds already; `uniform` (B,) in [0, 1) is each row's own randomness for
        this step, so that what a row draws does not depend on the other rows.
        """
