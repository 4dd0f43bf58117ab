"""Direct preference optimisation."""

from __future__ import annotations

from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from torch import Tensor
from torch.nn import functional as F

from bakeoff_align.objectives.preference.pairs import Pairs
from bakeoff_align.objectives.preference.preference import Referred


class DPO(Referred, Pairs):
    """`-log sigmoid(beta (s_c - s_r))` with `s = log pi(y|x) - log pi_ref(y|x)`, sums over the completion's tokens.

    At its optimum for preferences by a reward r (Bradley-Terry), `pi(y|x)` is proportional to
    `pi_ref(y|x) exp(r(x, y) / beta)`.

    Parameters
    ----------
    beta : of the distance from the reference; the paper has 0.1 to 0.5.
    label_smoothing : the share of pairs that is taken to be the wrong way round, below 1/2 (conservative DPO).
    language : coefficient of the loss of fine-tuning on the chosen completion, averaged over its tokens: pairs alone
        let both completions become less likely (Pang et al. 2024, arXiv:2404.19733, who have 1).
    """

    reference = Reference(
        "Rafailov et al.",
        2023,
        "Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
        "https://arxiv.org/abs/2305.18290",
    )

    def __init__(self, *, beta: float = 0.1, label_smoothing: float = 0.0, language: float = 0.0):
        super().__init__(beta=beta)
        if not 0 <= label_smoothing < 0.5:
            raise UserError(f"label_smoothing is {label_smoothing}; it must lie in 0 <= label_smoothing < 0.5")
        if not language >= 0:
            raise UserError(f"language is {language}; it must be 0 or more")
        self.label_smoothing, self.language = label_smoothing, language

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with labels that are not trusted and the loss of fine-tuning."""
        return [{}, {"beta": 0.5, "label_smoothing": 0.1, "language": 0.5}]

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return dpo_losses(chosen, rejected, beta=self.beta, label_smoothing=self.label_smoothing)


def dpo_losses(chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """(pairs,), of log-ratios to the reference, summed over tokens."""
    x = beta * (chosen - rejected)
    return -(1 - label_smoothing) * F.logsigmoid(x) - label_smoothing * F.logsigmoid(-x)
