"""Router `expert_choice`: experts choose their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from bakeoff.interfaces import Capabilities, LayerContext, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.capacity import documents_of
from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.dispatch import has_values
from bakeoff_moe.scores import ScoredRouter
from bakeoff_moe.whole_rows import chosen_of_all


class ExpertChoice(ScoredRouter):
    """Of n tokens each expert takes the `n c / E` of the highest scores, rounded, at least one: all loads are equal.

    A token may go to any number of experts, or to none. The score of an expert for a token, which is the weight of its
    output too, is softmax(x W) over the experts.

    Parameters
    ----------
    capacity : c, how many experts a token goes to on average; less than E.
    over : what the n tokens are. "sequence": those of a document, so that a token's experts depend on later tokens:
        not for next-token prediction. "batch": those at the same place of all rows, in training, where micro-batches
        should have E / c rows or more; in evaluation each token goes to the c experts, rounded, that score highest.
    bias, jitter : as in `top_k`.
    """

    reference = Reference(
        "Zhou et al.", 2022, "Mixture-of-Experts with Expert Choice Routing", "https://arxiv.org/abs/2202.09368"
    )

    sparse = True

    def __init__(
        self,
        context: LayerContext,
        *,
        capacity: float = 2.0,
        over: Literal["sequence", "batch"] = "sequence",
        bias: bool = False,
        jitter: float = 0.0,
    ):
        super().__init__(context, bias=bias, jitter=jitter)
        if not 0 < capacity < self.n_experts:
            raise ValueError(
                f"capacity is {capacity}, n_experts {self.n_experts}; it must lie in 0 < capacity < n_experts: at "
                "n_experts every expert takes every token"
            )
        self.capacity, self.over = capacity, over

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both groups to choose from."""
        return [{}, {"over": "batch", "capacity": 1.5}]

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Over a sequence: sees the future; over a batch: other rows, in training."""
        if self.over == "sequence":
            return Capabilities(causal=False, documents=True, padding=True, tensor_parallel=True, context_parallel=True)
        return replace(BY_TOKEN, lost_in_training=frozenset({"row_local", "documents", "padding"}))

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """Columns of `experts` are experts where they choose, else choices of a token."""
        logits = self.logits(x, sequence)
        p = logits.softmax(-1)
        if (self.over == "batch" and not self.training) or not has_values(p):
            weights, experts = p.topk(self.active())
            return Routing(experts, weights, logits, p)
        return Routing(chosen_of_all(p.detach(), sequence, self._taken), p, logits, p)

    def _taken(self, p: Tensor, sequence: Sequence) -> Tensor:
        """(N, E) scores -> (N, E) long: e in column e where expert e takes the token, else E."""
        groups = documents_of(sequence) if self.over == "sequence" else _places(sequence)
        real = torch.ones_like(groups, dtype=torch.bool) if sequence.real is None else sequence.real.flatten()
        n = groups.new_zeros(sequence.batch * (sequence.length + 1)).scatter_add_(0, groups, real.long())
        share = torch.minimum((n * (self.capacity / self.n_experts) + 0.5).long().clamp_min(1), n)
        taken = ranks(p.masked_fill(~real[:, None], -1.0), groups) < share[groups, None]
        return torch.where(taken, torch.arange(self.n_experts, device=p.device), self.n_experts)

    def pairs(self, tokens: int) -> int:
        """E times what each takes of a row of one document."""
        if self.over == "batch":
            return self.active() * tokens
        return self.n_experts * min(tokens, max(1, int(tokens * (self.capacity / self.n_experts) + 0.5)))

    def active(self) -> int:
        """c, rounded."""
        return max(1, int(self.capacity + 0.5))


def ranks(scores: Tensor, groups: Tensor) -> Tensor:
    """Of (N, E) scores and the group (N,) of each row: how many of its group score higher in each column, (N, E).

    Of equal scores the earlier row is higher.
    """
    order = scores.argsort(dim=0, descending=True, stable=True)
    order = order.gather(0, groups[order].argsort(dim=0, stable=True))  # by group, in each by score
    ordered = groups.sort().values
    within = torch.arange(len(groups), device=groups.device) - torch.searchsorted(ordered, ordered)
    return torch.empty_like(order).scatter_(0, order, within[:, None].expand_as(order))


def _places(sequence: Sequence) -> Tensor:
    """(N,) long: each token's place in its row."""
    return torch.arange(sequence.length, device=sequence.tokens.device).repeat(sequence.batch)
