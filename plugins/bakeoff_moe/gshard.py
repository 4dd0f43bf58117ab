"""Router `gshard`: two experts a token, the second by chance, with limited room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from bakeoff.interfaces import LayerContext, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.capacity import LimitedRouter
from bakeoff_moe.scores import check_k
from bakeoff_moe.whole_rows import noise_like


class GShard(LimitedRouter):
    """Each token goes to the two experts of the highest probability softmax(x W), with these, g1 + g2 = 1, as weights.

    In training, the second one is taken with probability 2 g2, and an expert takes at most
    `ceil(n / E * capacity_factor)` of the n tokens of a document of a row: all first choices before the second ones,
    earlier tokens before later ones. A choice that is not taken leaves the other's weight as it is. In evaluation both
    are always taken.

    Parameters
    ----------
    capacity_factor : 2 is room for both choices when all experts are chosen equally often.
    jitter : in training, the router's input is multiplied by numbers uniform in [1 - jitter, 1 + jitter].
    """

    reference = Reference(
        "Lepikhin et al.",
        2020,
        "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding",
        "https://arxiv.org/abs/2006.16668",
    )
    capabilities = replace(LimitedRouter.capabilities, lost_in_training=frozenset({"causal", "state"}))

    def __init__(self, context: LayerContext, *, capacity_factor: float = 2.0, jitter: float = 0.0):
        super().__init__(context, capacity_factor=capacity_factor, jitter=jitter)
        check_k(2, self.n_experts)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Little room, where later tokens' first choices are seen to take that of earlier ones' second choices."""
        return [{"capacity_factor": 1.0}]

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """The two best, where they are drawn and have room."""
        logits = self.logits(x, sequence)
        probabilities = logits.softmax(-1)
        weights, wanted = probabilities.topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        if self.training:
            first, second = wanted.unbind(-1)
            drawn = 2 * weights[:, 1] > noise_like(weights[:, 1], sequence, torch.rand_like)
            wanted = torch.stack([first, torch.where(drawn, second, self.n_experts)], -1)
        return Routing(self.with_room(wanted, sequence), weights, logits, probabilities, wanted=wanted)

    def pairs(self, tokens: int) -> int:
        """Two a token."""
        return 2 * tokens
