"""Router `sinkhorn`: choices from a plan of equal row and column sums."""

from __future__ import annotations

import math
from typing import Any

from bakeoff.interfaces import LayerContext, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.batch_balanced import BatchBalancedRouter, weights_of


class Sinkhorn(BatchBalancedRouter):
    """In training the k largest of each row of `P = diag(d0) exp(s) diag(d1)`, n tokens of a batch by E experts, all of
    whose rows sum to 1 / n and columns to 1 / E; in evaluation the k largest scores s = x W.

    Weights of the outputs are sigmoid(s) for k = 1, else softmax(s) over all experts.

    Parameters
    ----------
    k : experts a token.
    tolerance : the scaling ends when log d1 changes by less than this on average.
    iterations : or after so many rounds; scores far apart take many.
    bias, jitter : as in `top_k`.
    """

    reference = Reference(
        "Clark et al.", 2022, "Unified Scaling Laws for Routed Language Models", "https://arxiv.org/abs/2202.01169"
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        k: int = 1,
        tolerance: float = 1e-4,
        iterations: int = 300,
        bias: bool = False,
        jitter: float = 0.0,
    ):
        super().__init__(context, k=k, bias=bias, jitter=jitter)
        if tolerance <= 0 or iterations < 1:
            raise ValueError(f"tolerance is {tolerance}, iterations {iterations}; they must be > 0 and at least 1")
        self.tolerance, self.iterations = tolerance, iterations

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """One expert, and two."""
        return [{}, {"k": 2}]

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """k experts a token."""
        logits = self.logits(x, sequence)
        experts = self.chosen(logits, sequence)
        probabilities = logits.softmax(-1)
        values = logits.sigmoid() if self.k == 1 else probabilities
        return Routing(experts, weights_of(values, experts), logits, probabilities)

    def shared_out(self, scores: Tensor) -> Tensor:
        """By the plan."""
        return log_plan(scores, self.tolerance, self.iterations).topk(self.k).indices


def log_plan(scores: Tensor, tolerance: float, iterations: int) -> Tensor:
    """log P of (n, E) scores: rows of P sum to 1 / n, columns to 1 / E, the columns exactly."""
    n, E = scores.shape
    log_d0, log_d1 = scores.new_zeros(n, 1), scores.new_zeros(E)
    for _ in range(iterations if n else 0):
        before = log_d1
        log_d0 = -math.log(n) - (scores + log_d1).logsumexp(1, keepdim=True)
        log_d1 = -math.log(E) - (scores + log_d0).logsumexp(0)
        if not (log_d1 - before).abs().mean() >= tolerance:
            break
    return scores + log_d0 + log_d1
