"""Balance `sequence_balance`: load inside each sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from bakeoff.interfaces import Balance, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.load_balance import share
from bakeoff_moe.whole_rows import row_sums


class SequenceBalance(Balance):
    """`E sum_e f_e P_e` of each row of the batch, averaged over rows; 1 where all experts are alike in every row.

    f_e is expert e's share of the row's choices, P_e its mean probability there. Rows of padding alone do not count.

    Parameters
    ----------
    coefficient : the loss is multiplied by it.
    """

    reference = Reference("DeepSeek-AI", 2024, "DeepSeek-V3 Technical Report", "https://arxiv.org/abs/2412.19437")
    name = "sequence_balance"
    reads = "probabilities"
    additive = False

    def __init__(self, *, coefficient: float = 1e-4):
        self.coefficient = coefficient

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{}]

    def sums(self, routing: Routing, real: Tensor | None, sequence: Sequence) -> dict[str, Tensor]:
        """The rows' losses, added up, and how many rows there are."""
        p, wanted = routing.probabilities, routing.chosen
        assert p is not None
        B, T, E = sequence.batch, sequence.length, p.shape[1]
        if real is not None:
            p, wanted = p * real[:, None], torch.where(real[:, None], wanted, E)
        choices = wanted.view(B, T * wanted.shape[1])
        chosen = p.new_zeros(B, E + 1).scatter_add_(1, choices, torch.ones_like(choices, dtype=p.dtype))[:, :E]
        tokens = p.new_ones(B, T) if real is None else real.view(B, T).to(p.dtype)
        own = torch.cat([chosen, p.view(B, T, E).sum(1), tokens.sum(1, keepdim=True)], 1)
        chosen, inside, n = row_sums(own, sequence).split([E, E, 1], 1)
        rows = E * (share(chosen) * share(inside)).sum(1)
        counted = (n[:, 0] > 0).to(rows.dtype)
        ranks = 1 if sequence.spans is None else sequence.spans.ranks  # each of which tells the same
        return {"rows": (rows * counted).sum() / ranks, "count": counted.sum() / ranks}

    def loss(self, sums: Mapping[str, Tensor]) -> Tensor:
        """Of a layer and a micro-batch."""
        return self.coefficient * sums["rows"] / sums["count"].clamp_min(1)
