"""Head `scored`: another head, and a number for what was read up to each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from bakeoff.interfaces import Head, LayerContext, Reference
from bakeoff.parts.collectives import with_gradient_of
from bakeoff.parts.linear import Linear
from bakeoff.parts.vocabulary import Vocabulary
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Scored(Head):
    """All that the head inside gives, and besides `score(h) = w h + b`.

    So a reward model or a verifier is any backbone, may keep its loss as a language model, and begins from a run by
    `{use: added_parts, moved: {head: head.inner}, drawn: [head.readout.*]}`.

    Parameters
    ----------
    head : the one inside; it has the parameters that make logits.
    """

    reference = Reference(
        "Ouyang et al.",
        2022,
        "Training Language Models to Follow Instructions with Human Feedback",
        "https://arxiv.org/abs/2203.02155",
    )

    def __init__(self, context: LayerContext, *, head: Callable[[LayerContext], Head] = Vocabulary):
        super().__init__(context)
        self.inner = head(context)
        self.readout = Readout(context.d_model)
        self.capabilities = self.inner.capabilities
        self.ranks = 1

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Around the default head, and around another."""
        return [{}, {"head": {"use": "vocabulary", "scale": 0.5, "soft_cap": 5.0, "bias": True}}]

    def tie(self, embedding: nn.Parameter) -> None:
        """Share it with the head inside."""
        self.inner.tie(embedding)

    def narrow(self, ranks: DeviceMesh) -> None:
        """Note how many ranks compute the same scores: their gradients are added up."""
        self.ranks = ranks.size()

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        reduce: str = "sum",
        *,
        z_loss: float = 0.0,
        label_smoothing: float = 0.0,
    ) -> Any:
        """What the head inside gives; with `reduce` "score", scores (B, T)."""
        if reduce != "score":
            return self.inner(hidden, targets, weights, reduce, z_loss=z_loss, label_smoothing=label_smoothing)
        scores = self.readout(hidden)[..., 0]
        return scores if self.ranks == 1 else with_gradient_of(scores, 1 / self.ranks)

    def score(self, hidden: Tensor) -> Tensor:
        """Scores (B, T) of `hidden` (B, T, D), float32 or wider."""
        return self(hidden, reduce="score")

    def flops(self, queries: int, keys: int) -> int:
        """The head inside; a score, where it is asked for, is 2 D more a token."""
        return self.inner.flops(queries, keys)


class Readout(Linear):
    """`w h + b`, (…, D) -> (…, 1), in float32 or wider, whatever the precision around it."""

    keep_float32 = ("weight", "bias")

    def __init__(self, d_model: int):
        super().__init__(d_model, 1, bias=True, role="readout")

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            kind = torch.promote_types(torch.promote_types(x.dtype, self.weight.dtype), torch.float32)
            return F.linear(x.to(kind), self.weight.to(kind), self.bias.to(kind))
