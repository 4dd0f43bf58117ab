"""Kahneman-Tversky optimisation: single completions, each desirable or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.dialogue import Dialogue, Encoded
from bakeoff.interfaces.objective import Model, Statistics, Terms, TokenLosses
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer
from torch import Tensor

from bakeoff_align.log_probabilities import lengths, mean, of_layers, token_log_probabilities, told
from bakeoff_align.objectives.preference.mismatched import mismatched
from bakeoff_align.objectives.preference.preference import Referred

#: A completion that is at least so `right` is desirable.
DESIRABLE = 0.5


class KTO(Referred):
    """`1 - sigmoid(beta (s - z))` of a desirable completion, `1 - sigmoid(beta (z - s))` of another one.

    `s = log pi(y|x) - log pi_ref(y|x)`, a sum over the completion's tokens. `z`, without gradients, is how far the
    model has moved from the reference: the mean of s, or 0 if that is below 0, over each prompt of the micro-batch with
    the completion of the row before. So the loss is not additive over rows; a micro-batch has at least two dialogues,
    and the larger it is, the better the estimate. A dialogue is desirable if its `right` is at least 1/2.

    Parameters
    ----------
    beta : of the distance from the reference.
    desirable_weight, undesirable_weight : of losses; the paper wants the ratio of (desirable_weight times the desirable
        completions) to (undesirable_weight times the others) between 1 and 3/2.
    """

    reference = Reference(
        "Ethayarajh et al.",
        2024,
        "KTO: Model Alignment as Prospect Theoretic Optimization",
        "https://arxiv.org/abs/2402.01306",
    )
    additive = False

    def __init__(self, *, beta: float = 0.1, desirable_weight: float = 1.0, undesirable_weight: float = 1.0):
        super().__init__(beta=beta)
        for name, value in {"desirable_weight": desirable_weight, "undesirable_weight": undesirable_weight}.items():
            if not value > 0:
                raise UserError(f"{name} is {value}; it must be above 0")
        self.desirable_weight, self.undesirable_weight = desirable_weight, undesirable_weight

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with weights."""
        return [{}, {"beta": 0.5, "desirable_weight": 1.5, "undesirable_weight": 0.5}]

    def encode(self, dialogue: Dialogue, template: Template, tokenizer: Tokenizer) -> Encoded:
        """The completion after the prompt, and how right it is."""
        if not dialogue.completion:
            raise UserError(f"its `completion` is {'missing' if dialogue.completion is None else 'empty'}")
        if dialogue.right is None:
            raise UserError(
                f"its `right` is missing; KTO learns from completions that are desirable (at least {DESIRABLE}) or not"
            )
        return Encoded([template.row(dialogue.prompt, dialogue.completion, tokenizer)], {"right": dialogue.right})

    def forwards(self) -> float:
        """The reference's, and both models' of prompts with other completions."""
        return 3.0

    def planned(self, rows: int, length: int) -> dict[str, Tensor]:
        """How right each is."""
        return {"right": torch.ones(rows)}

    def forward(self, model: Model, batch: Mapping[str, Tensor | None]) -> tuple[Terms, Statistics]:
        """Term "loss"; as means "kl", the z of the micro-batch, "accuracy", the share of completions on the right side
        of it, the "margin" by which they are, and "chosen_reward" and "rejected_reward" of both kinds."""
        found = told(model, batch)
        weights, right = found.shifted.weights, batch["right"]
        assert right is not None
        gained = self.scores(model, batch, found)
        counts, good = lengths(weights) > 0, right >= DESIRABLE
        z = self._moved(model, batch, counts).to(gained)
        each = kto_losses(gained, z, good, beta=self.beta)
        each = torch.where(good, self.desirable_weight * each, self.undesirable_weight * each)
        count = counts.sum().to(gained)
        share = (weights > 0) / lengths(weights).clamp(min=1)[:, None]
        terms, statistics = of_layers(model, found, count, share)
        nats = -(found.log_probabilities.detach() * weights).sum()
        over = torch.where(good, gained - z, z - gained)
        told_of: dict[str, tuple[Tensor, Tensor]] = {
            "kl": (z.expand_as(gained), counts),
            "accuracy": ((over > 0).to(gained), counts),
            "margin": (self.beta * over, counts),
            "chosen_reward": (self.beta * gained, counts & good),
            "rejected_reward": (self.beta * gained, counts & ~good),
        }
        means = {f"mean.{name}": mean((value * of).sum(), of.sum()) for name, (value, of) in told_of.items()}
        statistics = {"nats": nats, "tokens": weights.sum(), **means, **statistics}
        return {"loss": ((each * counts).sum(), count), **terms}, statistics

    def token_losses(self, model: Model, batch: Mapping[str, Tensor | None]) -> TokenLosses:
        """Nats of the tokens of all completions."""
        found = told(model, batch)
        return TokenLosses(-found.log_probabilities, found.shifted.targets, found.shifted.weights)

    def _moved(self, model: Model, batch: Mapping[str, Tensor | None], counts: Tensor) -> Tensor:
        """z; of a single completion, which only evaluation may have, there is no estimate, and z is 0."""
        if len(counts) < 2 and torch.is_grad_enabled():
            raise UserError(
                "kto: a micro-batch has one dialogue, and the distance from the reference is estimated from at least "
                "two: set data.micro_batch to 2 or more"
            )
        others, n = mismatched(batch, counts), counts.sum()
        with torch.no_grad():
            moved = token_log_probabilities(model, others) - self.reference_model.log_probabilities(model, others)
        return torch.where(n > 1, (moved.sum() / n.clamp(min=1)).clamp(min=0), 0)


def kto_losses(gained: Tensor, z: Tensor, desirable: Tensor, *, beta: float) -> Tensor:
    """(B,), of log-ratios to the reference, summed over tokens, and of how far the model has moved."""
    over = torch.where(desirable, gained - z, z - gained)
    return 1 - torch.sigmoid(beta * over)
