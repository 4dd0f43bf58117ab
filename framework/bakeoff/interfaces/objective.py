"""Kind `objective`: what the model is trained to do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from bakeoff.interfaces.component import Component

#: name -> (sum over tokens, their weight); the trainer divides once, by the weight over the whole step.
Terms = dict[str, tuple[Tensor, Tensor]]


class Objective(nn.Module, Component):
    """Prepares inputs, targets and weights, and calls `model.backbone` and `model.head`. The one owner of the shift."""

    kind = "objective"

    @abstractmethod
    def tokens_wanted(self, length: int) -> int:
        """How many tokens of raw text a training sequence of `length` inputs takes."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Mapping[str, Tensor | None]) -> tuple[Terms, dict[str, Any]]:
        """`(terms, statistics)` of a batch.

        `batch` holds `tokens` (B, L) long with L = `tokens_wanted(length)`, and `documents` (B, L) long or None.
        The term "loss" is the negative log-likelihood in nats and its count of tokens; further terms, already
        multiplied by their coefficients, are added to it. Statistics are additive tensors (sums).
        """
