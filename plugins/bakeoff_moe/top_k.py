"""Router `top_k`: the k best scores."""

from __future__ import annotations

from typing import Any, Literal

from bakeoff.interfaces import LayerContext, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.scores import ScoredRouter, check_k


class TopK(ScoredRouter):
    """Each token goes to the k experts of the highest scores s = x W.

    Weights are softmax(s) over all experts, p_e, of those chosen (`softmax: before`), `renormalise`d to a sum of 1 or
    as they are; or the softmax over the chosen scores alone (`softmax: after`), which equals the renormalised ones.

    Parameters
    ----------
    k : experts a token.
    softmax : "before" or "after" the selection.
    renormalise : divide the weights of the chosen by their sum; of one expert that would be 1, whatever its score, and
        nothing would be learnt: k = 1 wants false.
    scale : the weights are multiplied by it.
    bias : the scores have one.
    jitter : in training, the router's input is multiplied by numbers uniform in [1 - jitter, 1 + jitter].
    """

    reference = Reference(
        "Shazeer et al.",
        2017,
        "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer",
        "https://arxiv.org/abs/1701.06538",
    )
    capabilities = BY_TOKEN

    def __init__(
        self,
        context: LayerContext,
        *,
        k: int = 2,
        softmax: Literal["before", "after"] = "before",
        renormalise: bool = True,
        scale: float = 1.0,
        bias: bool = False,
        jitter: float = 0.0,
    ):
        super().__init__(context, bias=bias, jitter=jitter)
        check_k(k, self.n_experts)
        if k == 1 and (renormalise or softmax == "after"):
            raise ValueError(
                f"k is 1, renormalise {str(renormalise).lower()}, softmax {softmax}: one expert's weight would be 1 "
                "whatever its score, and the router learn nothing; set renormalise: false and softmax: before"
            )
        self.k, self.softmax, self.renormalise, self.scale = k, softmax, renormalise, scale

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Mixtral's and GPT-OSS's way, and a single expert."""
        return [{}, {"k": 3, "softmax": "after", "bias": True, "scale": 2.0}, {"k": 1, "renormalise": False}]

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """The k best."""
        logits = self.logits(x, sequence)
        probabilities = logits.softmax(-1)
        if self.softmax == "after":
            best, experts = logits.topk(self.k)
            weights = best.softmax(-1)
        else:
            weights, experts = probabilities.topk(self.k)
            if self.renormalise:
                weights = weights / weights.sum(-1, keepdim=True)
        return Routing(experts, self.scale * weights, logits, probabilities)

    def pairs(self, tokens: int) -> int:
        """k a token."""
        return self.k * tokens
