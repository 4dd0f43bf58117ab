"""Balance `load_balance`: the product of load and probability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from bakeoff.interfaces import Balance, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.load import counted, over_real


class LoadBalance(Balance):
    """`E sum_e f_e P_e`: f_e is expert e's share of all choices, P_e its mean probability; 1 where all are alike.

    Choices are counted as they were wanted, with those that found no room. k is divided out, unlike in the sum over
    choices that some codes use, which gives k where all are alike.

    Parameters
    ----------
    coefficient : the loss is multiplied by it.
    """

    reference = Reference(
        "Fedus et al.",
        2022,
        "Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient Sparsity",
        "https://arxiv.org/abs/2101.03961",
    )
    name = "load_balance"
    reads = "probabilities"

    def __init__(self, *, coefficient: float = 0.01):
        self.coefficient = coefficient

    def sums(self, routing: Routing, real: Tensor | None, sequence: Sequence) -> dict[str, Tensor]:
        """Choices (E,) and probabilities (E,)."""
        return shares(routing, real)

    def loss(self, sums: Mapping[str, Tensor]) -> Tensor:
        """Of a layer and a micro-batch."""
        f, p = share(sums["chosen"]), share(sums["probabilities"])
        return self.coefficient * len(f) * (f * p).sum()

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{}]


def shares(routing: Routing, real: Tensor | None) -> dict[str, Tensor]:
    """Sums over real tokens: how often each expert was chosen, and its probability; (E,) each."""
    probabilities = routing.probabilities
    assert probabilities is not None
    chosen = counted(routing.chosen, probabilities.shape[1], real).to(probabilities.dtype)
    return {"chosen": chosen, "probabilities": over_real(probabilities, real)}


def share(sums: Tensor) -> Tensor:
    """Of the whole, on the last dimension; zeros of nothing."""
    return sums / sums.sum(-1, keepdim=True).clamp_min(torch.finfo(sums.dtype).tiny)
