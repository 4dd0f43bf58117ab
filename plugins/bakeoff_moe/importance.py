"""Balance `importance`: weights that add up alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from bakeoff.interfaces import Balance, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.load import over_real


class Importance(Balance):
    """The squared coefficient of variation, over experts, of the sum of the weights that tokens give each.

    0 where all are alike, E - 1 where one has everything: the variance, which the paper leaves open, is that of
    the E experts themselves, divided by E and not by E - 1.

    Parameters
    ----------
    coefficient : the loss is multiplied by it.
    """

    reference = Reference(
        "Shazeer et al.",
        2017,
        "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer",
        "https://arxiv.org/abs/1701.06538",
    )
    name = "importance"
    reads = "probabilities"

    def __init__(self, *, coefficient: float = 0.1):
        self.coefficient = coefficient

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{}]

    def sums(self, routing: Routing, real: Tensor | None, sequence: Sequence) -> dict[str, Tensor]:
        """Weights (E,) of the choices that are taken."""
        assert routing.probabilities is not None
        N, E = routing.probabilities.shape
        gates = routing.weights.new_zeros(N, E + 1).scatter_add(1, routing.experts, routing.weights)
        return {"gates": over_real(gates[:, :E], real)}

    def loss(self, sums: Mapping[str, Tensor]) -> Tensor:
        """Of a layer and a micro-batch."""
        return self.coefficient * squared_variation(sums["gates"])


def squared_variation(values: Tensor) -> Tensor:
    """(E,) -> the variance divided by the squared mean; 0 of zeros."""
    return values.var(correction=0) / values.mean().square().clamp_min(torch.finfo(values.dtype).tiny)
