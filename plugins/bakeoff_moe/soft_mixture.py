"""Router `soft_mixture`: every expert, weighted."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.interfaces import Capabilities, LayerContext, Reference, Router, Routing, Sequence, Slots
from bakeoff.parts.linear import linear_flops
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.scores import RouterLinear


class SoftMixture(Router):
    """Each expert reads `slots` mixtures of a row's tokens, and each token a mixture of all slots' outputs.

    The score of token t and slot s is a cosine times a learned scale: `l_ts = g (x_t / |x_t|) . (phi_s / |phi_s|)`.
    A slot's weights are softmax over t, a token's are softmax over s. Tokens of a row see each other, later ones and
    those of other documents too: not for next-token prediction.

    Without slots every expert reads every token, and its output's weight is softmax(x W) over the experts (Jacobs et
    al. 1991, Adaptive Mixtures of Local Experts); tokens stay apart, and all parameters are active.

    Parameters
    ----------
    slots : of each expert; null: none.
    """

    reference = Reference(
        "Puigcerver et al.", 2023, "From Sparse to Soft Mixtures of Experts", "https://arxiv.org/abs/2308.00951"
    )

    def __init__(self, context: LayerContext, *, slots: int | None = 1):
        super().__init__(context)
        if slots is not None and slots < 1:
            raise ValueError(f"slots is {slots}; an expert has at least 1, or null, to read every token")
        self.slots, d = slots, context.d_model
        self.scores = (
            RouterLinear(d, self.n_experts, role="gate") if slots is None else Cosines(d, self.n_experts * slots)
        )

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With slots, and without."""
        return [{"slots": 2}, {"slots": None}]

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """With slots, a token sees its whole row."""
        if self.slots is not None:
            return Capabilities(causal=False, padding=True, tensor_parallel=True)
        return BY_TOKEN

    @property
    def gives(self) -> tuple[str, ...]:  # type: ignore[override]
        """With slots there is nothing to balance."""
        return ("logits", "probabilities") if self.slots is None else ()

    def route(self, x: Tensor, sequence: Sequence) -> Routing | Slots:
        """All experts."""
        if self.slots is None:
            logits = self.scores(x.flatten(0, 1))
            p = logits.softmax(-1)
            return Routing(torch.arange(self.n_experts, device=x.device).expand_as(p), p, logits, p)
        logits, real = self.scores(x), sequence.real
        own = logits if real is None else logits.masked_fill(~real[..., None], torch.finfo(logits.dtype).min)
        dispatch, combine = own.softmax(1), logits.softmax(-1)
        if real is not None:
            dispatch, combine = dispatch * real[..., None], combine * real[..., None]
        shape = (self.n_experts, self.slots)
        return Slots(dispatch.mT.unflatten(1, shape), combine.unflatten(-1, shape))

    def pairs(self, tokens: int) -> int:
        """Every slot once, or every token by every expert."""
        return self.n_experts * (tokens if self.slots is None else self.slots)

    def flops(self, queries: int, keys: int) -> int:
        """Scores; with slots, mixing tokens and mixing slots take as much each."""
        return linear_flops(self.scores, queries) * (1 if self.slots is None else 3)


class Cosines(RouterLinear):
    """Cosine of a vector and each of n learned ones, times a learned number."""

    keep_float32 = ("weight", "scale")

    def __init__(self, d: int, n: int):
        super().__init__(d, n, role="gate")
        self.scale = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., n)."""
        with torch.autocast(x.device.type, enabled=False):
            kind = torch.promote_types(torch.promote_types(x.dtype, self.weight.dtype), torch.float32)
            weight = F.normalize(self.weight.to(kind), dim=-1, eps=1e-6)
            return F.linear(F.normalize(x.to(kind), dim=-1, eps=1e-6), self.scale.to(kind) * weight)
