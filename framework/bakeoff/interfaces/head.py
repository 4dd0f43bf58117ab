"""Kind `head`: what turns hidden states into an answer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

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
