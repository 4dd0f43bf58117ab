"""Kind `balance`: a loss over the choices of a layer's tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from bakeoff.interfaces.component import Component
from bakeoff.interfaces.router import Routing
from bakeoff.interfaces.sequence import Sequence


class Balance(Component):
    """Adds up what it needs over real tokens, and makes one loss of it for a layer and a micro-batch.

    A loss that is no sum over tokens is averaged over the micro-batches of a step, each by its tokens.
    """

    kind = "balance"
    name: ClassVar[str]
    """What the loss is called among the terms of a run."""
    reads: ClassVar[str]
    """Which field of `Routing` it cannot do without: "probabilities", "logits" or "inclusion"."""
    additive: ClassVar[bool] = True
    """The sums of a row in several calls add up to those of one call."""

    def check(self, n_experts: int) -> None:
        """Raise `ValueError` if it does not fit so many experts."""

    @abstractmethod
    def sums(self, routing: Routing, real: Tensor | None, sequence: Sequence) -> dict[str, Tensor]:
        """Additive tensors; `real` is (N,) bool, or None where no token is padding."""

    @abstractmethod
    def loss(self, sums: Mapping[str, Tensor]) -> Tensor:
        """The loss of what was added up, times its coefficient."""
