"""Router `switch`: one expert a token, with limited room."""

from __future__ import annotations

from typing import Any

from bakeoff.interfaces import LayerContext, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.capacity import LimitedRouter


class Switch(LimitedRouter):
    """Each token goes to the one expert of the highest probability p = softmax(x W), with p as its weight.

    In training, an expert takes at most `ceil(n / E * capacity_factor)` of the n tokens of a document of a row, earlier
    ones first; the others go nowhere. In evaluation it takes all.

    Parameters
    ----------
    capacity_factor : 1 is room for as many as there are when all experts get equally many.
    jitter : in training, the router's input is multiplied by numbers uniform in [1 - jitter, 1 + jitter].
    """

    reference = Reference(
        "Fedus et al.",
        2022,
        "Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient Sparsity",
        "https://arxiv.org/abs/2101.03961",
    )

    def __init__(self, context: LayerContext, *, capacity_factor: float = 1.25, jitter: float = 0.0):
        super().__init__(context, capacity_factor=capacity_factor, jitter=jitter)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Usual room, and little of it under noise."""
        return [{}, {"capacity_factor": 0.5, "jitter": 0.01}]

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """The best, where it has room."""
        logits = self.logits(x, sequence)
        probabilities = logits.softmax(-1)
        weights, wanted = probabilities.max(-1, keepdim=True)
        return Routing(self.with_room(wanted, sequence), weights, logits, probabilities, wanted=wanted)

    def pairs(self, tokens: int) -> int:
        """One a token."""
        return tokens
