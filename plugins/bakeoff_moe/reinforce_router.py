"""Router `reinforce_router`: a policy, and what its choices cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from bakeoff.interfaces import Feedback, LayerContext, Reference, Routing, Sequence, init
from bakeoff.parts.collectives import with_gradient_of
from torch import Tensor

from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.scores import RouterLinear, ScoredRouter
from bakeoff_moe.whole_rows import noise_like

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class ReinforceRouter(ScoredRouter):
    """In training each token's expert is drawn from pi = softmax(x W); in evaluation it is the likeliest.

    The expert's output is not weighted, so that W learns from the cost of the token's prediction alone: its gradient is
    `(nats - b) grad log pi(expert)`, with b = x w + c a baseline that learns what to expect, without a say in x.

    Parameters
    ----------
    coefficient : of that term in the objective.
    bias, jitter : as in `top_k`.
    """

    reference = Reference(
        "Clark et al.", 2022, "Unified Scaling Laws for Routed Language Models", "https://arxiv.org/abs/2202.01169"
    )
    capabilities = BY_TOKEN

    def __init__(self, context: LayerContext, *, coefficient: float = 0.01, bias: bool = False, jitter: float = 0.0):
        super().__init__(context, bias=bias, jitter=jitter)
        if coefficient <= 0:
            raise ValueError(f"coefficient is {coefficient}; it must be positive, or nothing is learnt")
        self.coefficient = coefficient
        self.name, self.expected = f"feedback.{context.layer}", math.log(context.vocab_size)
        self.told = 1  # ranks of which each tells the objective the same
        self.baseline = RouterLinear(context.d_model, 1, bias=True, role="gate")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{}]

    def reset_parameters(self) -> None:
        """The baseline begins at ln V, what a token costs that could be any."""
        init.fill(self.baseline.bias, init.constant(self.expected))

    def narrow(self, ranks: DeviceMesh) -> None:
        """Each rank gives its part of the gradient of what all of them tell the objective."""
        self.told = ranks.size()

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """One expert a token; in training, with what the objective needs for its feedback."""
        logits = self.logits(x, sequence)
        p = logits.softmax(-1)
        if not self.training:
            experts = logits.argmax(-1, keepdim=True)
            return Routing(experts, torch.ones_like(p[:, :1]), logits, p)
        gumbel = -(-noise_like(logits, sequence, torch.rand_like).log()).log()
        experts = (logits.detach() + gumbel).argmax(-1, keepdim=True)
        log_p = logits.log_softmax(-1).gather(-1, experts)
        told = log_p.view(x.shape[:2]), self.baseline(x.detach())[..., 0]
        chosen, baseline = (with_gradient_of(value, 1 / self.told) for value in told)
        feedback = Feedback(chosen, baseline, self.coefficient)
        return Routing(experts, torch.ones_like(p[:, :1]), logits, p, memory={self.name: feedback})

    def pairs(self, tokens: int) -> int:
        """One a token."""
        return tokens
