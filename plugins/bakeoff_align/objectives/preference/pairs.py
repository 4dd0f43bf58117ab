"""What objectives share that learn from pairs of completions, one of which was preferred."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from bakeoff.interfaces.dialogue import Dialogue, Encoded
from bakeoff.interfaces.objective import Model, Statistics, Terms, TokenLosses
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer
from torch import Tensor

from bakeoff_align.log_probabilities import lengths, mean, of_layers, summed, told
from bakeoff_align.objectives.preference.preference import Preference, of_each_token
from bakeoff_align.objectives.rows import both_rows


class Pairs(Preference):
    """Each dialogue is two rows, what was chosen and what was rejected; a pair counts 1, however long it is.

    Targets are the tokens of completions, their ends among them.
    """

    rows_each = 2
    language: float = 0.0
    """Coefficient of what a token of the chosen completion costs, its mean over the completion."""

    @abstractmethod
    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """(pairs,), from the scores (pairs,) of both completions."""

    def encode(self, dialogue: Dialogue, template: Template, tokenizer: Tokenizer) -> Encoded:
        """The chosen completion after the prompt, and the rejected one after the same."""
        return Encoded([*both_rows(dialogue, template, tokenizer, learner=type(self).__name__)])

    def forward(self, model: Model, batch: Mapping[str, Tensor | None]) -> tuple[Terms, Statistics]:
        """Term "loss"; as means "accuracy", the share of pairs whose chosen completion has the greater reward, the
        "margin" by which it does, and "chosen_reward" and "rejected_reward" themselves."""
        found = told(model, batch)
        weights = found.shifted.weights
        chosen, rejected = self.scores(model, batch, found).view(-1, 2).unbind(1)
        counts = (lengths(weights) > 0).view(-1, 2).all(1)  # rows that fill a batch up are no pairs
        count = counts.sum().to(chosen)
        losses = self.losses(chosen, rejected)
        if self.language:
            said = of_each_token(summed(found.log_probabilities, weights), found)
            losses = losses - self.language * said.view(-1, 2)[:, 0]
        loss = torch.where(counts, losses, 0).sum()
        share = (weights > 0) / lengths(weights).clamp(min=1)[:, None] * _first_of_pairs(counts)[:, None]
        terms, statistics = of_layers(model, found, count, share)
        told_of = {
            "accuracy": (chosen > rejected).to(chosen),
            "margin": self.beta * (chosen - rejected),
            "chosen_reward": self.beta * chosen,
            "rejected_reward": self.beta * rejected,
        }
        means = {f"mean.{name}": mean(torch.where(counts, each, 0).sum(), count) for name, each in told_of.items()}
        targets = weights * _first_of_pairs(counts)[:, None]
        nats = -(found.log_probabilities.detach() * targets).sum()
        statistics = {"nats": nats, "tokens": targets.sum(), **means, **statistics}
        return {"loss": (loss, count), **terms}, statistics

    def token_losses(self, model: Model, batch: Mapping[str, Tensor | None]) -> TokenLosses:
        """Nats of the tokens of chosen completions."""
        found = told(model, batch)
        counts = (lengths(found.shifted.weights) > 0).view(-1, 2).all(1)
        targets = found.shifted.weights * _first_of_pairs(counts)[:, None]
        return TokenLosses(-found.log_probabilities, found.shifted.targets, targets)


def _first_of_pairs(counts: Tensor) -> Tensor:
    """(pairs,) bool -> (B,) bool: the row is the chosen one of a pair that counts."""
    return torch.stack([counts, torch.zeros_like(counts)], 1).flatten()
