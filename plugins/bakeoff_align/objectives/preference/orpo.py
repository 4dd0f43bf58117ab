"""Odds-ratio preference optimisation: fine-tuning and preference in one, no reference."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.objective import Model
from torch import Tensor
from torch.nn import functional as F

from bakeoff_align.log_probabilities import Told, summed
from bakeoff_align.objectives.preference.pairs import Pairs
from bakeoff_align.objectives.preference.preference import of_each_token


class ORPO(Pairs):
    """`-s_c - beta log sigmoid(log odds(s_c) - log odds(s_r))`, `s` the mean of `log pi` over the completion's tokens.

    `odds(s) = exp(s) / (1 - exp(s))`. The first part is the loss of fine-tuning on the chosen completion, averaged over
    its tokens, the prompt not among them.

    Parameters
    ----------
    beta : lambda of the paper, how much the odds ratio counts.
    """

    reference = Reference(
        "Hong et al.",
        2024,
        "ORPO: Monolithic Preference Optimization without Reference Model",
        "https://arxiv.org/abs/2403.07691",
    )

    def __init__(self, *, beta: float = 0.1):
        super().__init__(beta=beta)

    def scores(self, model: Model, batch: Mapping[str, Tensor | None], found: Told) -> Tensor:
        return of_each_token(summed(found.log_probabilities, found.shifted.weights), found)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return orpo_losses(chosen, rejected, beta=self.beta)


def orpo_losses(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """(pairs,), of log-probabilities averaged over tokens."""
    return -chosen - beta * F.logsigmoid(log_odds(chosen) - log_odds(rejected))


def log_odds(log_p: Tensor) -> Tensor:
    """`log(p / (1 - p))` of `log p`; finite, with a finite slope, where p rounds to 1."""
    log_p = log_p.clamp(max=-torch.finfo(log_p.dtype).eps)
    return log_p - torch.log(-torch.expm1(log_p))
