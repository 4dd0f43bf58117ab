"""Router `linear_assignment`: the best of all balanced choices."""

from __future__ import annotations

from typing import Any

from bakeoff.interfaces import LayerContext, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.auction import assign
from bakeoff_moe.batch_balanced import BatchBalancedRouter, weights_of
from bakeoff_moe.load import counted


class LinearAssignment(BatchBalancedRouter):
    """In training, of all ways to give each of E experts n / E of the batch's n tokens, the one of the largest sum of
    scores s = x W; in evaluation, each token goes to the expert that scores highest.

    Where E does not divide n, those experts have one token more that score highest for the most tokens. The weight of
    an expert's output is sigmoid(s).

    Parameters
    ----------
    bias, jitter : as in `top_k`.
    """

    reference = Reference(
        "Lewis et al.",
        2021,
        "BASE Layers: Simplifying Training of Large, Sparse Models",
        "https://arxiv.org/abs/2103.16716",
    )
    gives = ("logits",)

    def __init__(self, context: LayerContext, *, bias: bool = False, jitter: float = 0.0):
        super().__init__(context, bias=bias, jitter=jitter)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{}]

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """One expert a token."""
        logits = self.logits(x, sequence)
        experts = self.chosen(logits, sequence)
        return Routing(experts, weights_of(logits, experts).sigmoid(), logits)

    def shared_out(self, scores: Tensor) -> Tensor:
        """By an auction."""
        return assign(scores, self.room(scores))[:, None]

    def room(self, scores: Tensor) -> Tensor:
        """(E,) long: how many of (n, E) tokens each expert is to have."""
        share, rest = divmod(len(scores), self.n_experts)
        wanted = counted(scores.argmax(1)[:, None], self.n_experts, None)
        most = wanted.argsort(descending=True, stable=True)[:rest]
        return wanted.new_full((self.n_experts,), share).index_add_(0, most, wanted.new_ones(rest))
