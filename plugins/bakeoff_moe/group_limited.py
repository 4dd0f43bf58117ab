"""Router `group_limited`: experts of a few groups only."""

from __future__ import annotations

from typing import Any, Literal

import torch
from bakeoff.interfaces import LayerContext, Reference
from torch import Tensor

from bakeoff_moe.bias_balanced import BiasBalanced


class GroupLimited(BiasBalanced):
    """As `bias_balanced`, but each token chooses among the experts of `groups_chosen` groups of neighbours only.

    A group's score is the sum of its two highest s + b; the groups of the highest scores are kept. Where the experts of
    a group share a device, a token is sent to that many devices at most.

    Parameters
    ----------
    groups : how many there are; it divides the number of experts into groups of two or more.
    groups_chosen : how many a token keeps; together they have at least k experts.
    k : experts a token.
    scoring : what makes s of the scores.
    renormalise : divide the weights of the chosen by their sum; k = 1 wants false.
    scale : the weights are multiplied by it.
    rate : how far b moves a step.
    """

    reference = Reference("DeepSeek-AI", 2024, "DeepSeek-V3 Technical Report", "https://arxiv.org/abs/2412.19437")

    def __init__(
        self,
        context: LayerContext,
        *,
        groups: int,
        groups_chosen: int,
        k: int = 2,
        scoring: Literal["sigmoid", "softmax"] = "sigmoid",
        renormalise: bool = True,
        scale: float = 1.0,
        rate: float = 0.001,
    ):
        super().__init__(context, k=k, scoring=scoring, renormalise=renormalise, scale=scale, rate=rate)
        n = self.n_experts
        if groups < 1 or n % groups or n // groups < 2:
            raise ValueError(f"groups is {groups}; it must divide n_experts, {n}, into groups of two or more")
        if not 1 <= groups_chosen <= groups:
            raise ValueError(f"groups_chosen is {groups_chosen}, groups {groups}; 1 <= groups_chosen <= groups")
        if groups_chosen * (n // groups) < k:
            raise ValueError(
                f"k is {k}, but {groups_chosen} of {groups} groups have {groups_chosen * (n // groups)} of "
                f"{n} experts; raise groups_chosen, or lower k"
            )
        self.groups, self.groups_chosen = groups, groups_chosen

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """One of two groups."""
        return [{"groups": 2, "groups_chosen": 1}]

    def chosen(self, biased: Tensor) -> Tensor:
        """(N, E), s + b -> (N, k), the experts."""
        grouped = biased.unflatten(-1, (self.groups, -1))
        best = grouped.topk(2).values.sum(-1).topk(self.groups_chosen).indices
        kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, True)
        return super().chosen(grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2))
