"""Router `noisy_top_k`: the k best of noisy scores."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from bakeoff.interfaces import LayerContext, Reference, Routing, Sequence, init
from torch import Tensor
from torch.nn import functional as F

from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.scores import RouterLinear, ScoredRouter
from bakeoff_moe.whole_rows import noise_like

#: Noise of less than this standard deviation is taken for this much, where a chance is computed.
_LEAST = 1e-6
#: The chance of a standard normal number to lie beyond it is 0 in float32.
_FAR = 15.0


class NoisyTopK(ScoredRouter):
    """Each token goes to the k experts of the highest `H = x W + N(0, 1) softplus(x V)`; weights are softmax over them.

    In evaluation there is no noise. W and V begin with zeros, so that chance spreads the first tokens evenly. In
    training, `inclusion` is `P_i = Phi((x W_i - t_i) / softplus(x V_i))`, where t_i is the k-th largest of the others'
    H: the chance that expert i is chosen if its noise alone is drawn anew.

    Parameters
    ----------
    k : experts a token, at least two, since the weight of a single one would be 1 whatever its score; and fewer than
        there are experts.
    """

    reference = Reference(
        "Shazeer et al.",
        2017,
        "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer",
        "https://arxiv.org/abs/1701.06538",
    )
    capabilities = BY_TOKEN
    gives: ClassVar[tuple[str, ...]] = (*ScoredRouter.gives, "inclusion")

    def __init__(self, context: LayerContext, *, k: int = 2):
        super().__init__(context)
        if not 2 <= k < self.n_experts:
            raise ValueError(f"k is {k}, n_experts {self.n_experts}; noise chooses 2 <= k < n_experts experts")
        self.k = k
        self.noise = RouterLinear(context.d_model, self.n_experts, role="gate")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Two, and all but one."""
        return [{}, {"k": 3}]

    def reset_parameters(self) -> None:
        """Zeros: equal scores, noise of standard deviation ln 2."""
        init.fill(self.scores.weight, init.constant(0.0))
        init.fill(self.noise.weight, init.constant(0.0))

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """The k best of the noisy scores."""
        clean = noisy = self.logits(x, sequence)
        inclusion = None
        if self.training:
            deviation = F.softplus(self.noise(x.flatten(0, 1)))
            noisy = clean + noise_like(clean, sequence, torch.randn_like) * deviation
            inclusion = chance_of_inclusion(clean, noisy, deviation, self.k)
        best, experts = noisy.topk(self.k)
        return Routing(experts, best.softmax(-1), noisy, noisy.softmax(-1), inclusion=inclusion)

    def pairs(self, tokens: int) -> int:
        """k a token."""
        return self.k * tokens


def chance_of_inclusion(clean: Tensor, noisy: Tensor, deviation: Tensor, k: int) -> Tensor:
    """(N, E) each -> (N, E): that an expert is among the k best of `noisy` when its own noise alone is drawn anew."""
    best = noisy.topk(k + 1).values
    last, next_one = best[:, k - 1 : k], best[:, k:]
    kth_of_others = torch.where(noisy > next_one, next_one, last)
    distance = (clean - kth_of_others) / deviation.clamp_min(_LEAST)
    return torch.special.ndtr(distance.clamp(-_FAR, _FAR))
