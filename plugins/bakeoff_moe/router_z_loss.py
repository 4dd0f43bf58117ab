"""Balance `router_z_loss`: logits that stay small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from bakeoff.interfaces import Balance, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.load import over_real


class RouterZLoss(Balance):
    """The mean of the squared log-sum-exp of a token's logits, which keeps them where float32 resolves them.

    Parameters
    ----------
    coefficient : the loss is multiplied by it.
    """

    reference = Reference(
        "Zoph et al.",
        2022,
        "ST-MoE: Designing Stable and Transferable Sparse Expert Models",
        "https://arxiv.org/abs/2202.08906",
    )
    name = "router_z_loss"
    reads = "logits"

    def __init__(self, *, coefficient: float = 1e-3):
        self.coefficient = coefficient

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{}]

    def sums(self, routing: Routing, real: Tensor | None, sequence: Sequence) -> dict[str, Tensor]:
        """The squares, added up, and how many tokens there are."""
        assert routing.logits is not None
        squares = routing.logits.logsumexp(-1).square()
        return {"squares": over_real(squares, real), "tokens": over_real(torch.ones_like(squares), real)}

    def loss(self, sums: Mapping[str, Tensor]) -> Tensor:
        """Of a layer and a micro-batch."""
        return self.coefficient * sums["squares"] / sums["tokens"].clamp_min(1)
