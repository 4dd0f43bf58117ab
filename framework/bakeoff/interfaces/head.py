"""Kind `head`: what turns hidden states into an answer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.part import Part


class Head(Part):
    """Hidden states (B, T, D) -> an answer; a loss where targets are given."""

    kind = "head"

    @abstractmethod
    def forward(
        self,
        hidden: Tensor,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        reduce: str = "sum",
    ) -> Any:
        """The answer without targets; else its loss: `reduce` "sum" weighted, "none" one value a token."""

    def tie(self, embedding: nn.Parameter) -> None:
        """Share the (V, D) input embedding; refused where a head has no matrix of that shape."""
        raise ValueError(f"{type(self).__name__} cannot share the embedding: set model.tied_embedding: false")

    def score(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, T), how good what was read up to each token is. Refused by heads that do not tell."""
        raise CapabilityError(
            f"{type(self).__name__} says what comes next and scores nothing: use a head that does, such as "
            "model.head: {use: scored}"
        )
