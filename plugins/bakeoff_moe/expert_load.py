"""Balance `expert_load`: experts that are chosen alike often, as noise draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bakeoff.interfaces import Balance, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.importance import squared_variation
from bakeoff_moe.load import over_real


class ExpertLoad(Balance):
    """The squared coefficient of variation, over experts, of how many tokens are expected to choose each.

    The expectation is the sum of the chances that the router gives as `inclusion`. 0 where all are alike, E - 1 where
    one has everything; the variance is that of `importance`.

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
    name = "expert_load"
    reads = "inclusion"

    def __init__(self, *, coefficient: float = 0.1):
        self.coefficient = coefficient

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{}]

    def sums(self, routing: Routing, real: Tensor | None, sequence: Sequence) -> dict[str, Tensor]:
        """Chances (E,)."""
        assert routing.inclusion is not None
        return {"chances": over_real(routing.inclusion, real)}

    def loss(self, sums: Mapping[str, Tensor]) -> Tensor:
        """Of a layer and a micro-batch."""
        return self.coefficient * squared_variation(sums["chances"])
