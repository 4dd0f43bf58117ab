"""Router `bias_balanced`: a bias on the choice alone, moved by rule, keeps the load even."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from bakeoff.interfaces import LayerContext, Reference, Routing, Sequence, init
from torch import Tensor, nn

from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.load_balance import share
from bakeoff_moe.scores import ScoredRouter, check_k


class BiasBalanced(ScoredRouter):
    """Each token goes to the k experts of the highest s + b; its weights are s alone, s = sigmoid(x W) or softmax(x W).

    After each step `b_e += rate * sign(1 / E - load_e)`: experts with less than their share become likelier. b is the
    buffer `selection_bias` (E,), float32, part of the state and no parameter. Balances read s / sum s as probabilities.

    Parameters
    ----------
    k : experts a token.
    scoring : what makes s of the scores.
    renormalise : divide the weights of the chosen by their sum; k = 1 wants false.
    scale : the weights are multiplied by it.
    rate : how far b moves a step.
    """

    reference = Reference(
        "Wang et al.",
        2024,
        "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts",
        "https://arxiv.org/abs/2408.15664",
    )
    capabilities = BY_TOKEN
    keep_float32: ClassVar[tuple[str, ...]] = ("selection_bias",)
    selection_bias: Tensor

    def __init__(
        self,
        context: LayerContext,
        *,
        k: int = 2,
        scoring: Literal["sigmoid", "softmax"] = "sigmoid",
        renormalise: bool = True,
        scale: float = 1.0,
        rate: float = 0.001,
    ):
        super().__init__(context)
        check_k(k, self.n_experts)
        if k == 1 and renormalise:
            raise ValueError(
                "k is 1, renormalise true: the weight of one expert would be 1 whatever its score, and the router "
                "learn nothing; set renormalise: false"
            )
        self.k, self.scoring, self.renormalise = k, scoring, renormalise
        self.scale, self.rate = scale, rate
        self.selection_bias = nn.Buffer(torch.empty(self.n_experts, dtype=torch.float32))

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """DeepSeek-V3's way, and softmax with a single expert."""
        return [{"scale": 2.5}, {"k": 1, "scoring": "softmax", "renormalise": False}]

    def reset_parameters(self) -> None:
        """No bias."""
        init.fill(self.selection_bias, init.constant(0.0))

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """The k best of s + b."""
        logits = self.logits(x, sequence)
        s = logits.sigmoid() if self.scoring == "sigmoid" else logits.softmax(-1)
        experts = self.chosen(s + self.selection_bias)
        weights = s.gather(-1, experts)
        weights = self.scale * (share(weights) if self.renormalise else weights)
        return Routing(experts, weights, logits, share(s))

    def chosen(self, biased: Tensor) -> Tensor:
        """(N, E), s + b -> (N, k), the experts."""
        return biased.topk(self.k).indices

    def after_step(self, statistics: Mapping[str, Tensor]) -> None:
        """Move the bias by the load of the step, unless the router is frozen."""
        if any(parameter.requires_grad for parameter in self.scores.parameters()):
            self.selection_bias += self.rate * torch.sign(1 / self.n_experts - statistics["load"])

    def pairs(self, tokens: int) -> int:
        """k a token."""
        return self.k * tokens
