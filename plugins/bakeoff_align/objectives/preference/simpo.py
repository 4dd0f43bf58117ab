"""Simple preference optimisation: no reference."""

from __future__ import annotations

from collections.abc import Mapping

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.objective import Model
from torch import Tensor
from torch.nn import functional as F

from bakeoff_align.log_probabilities import Told, summed
from bakeoff_align.objectives.preference.pairs import Pairs
from bakeoff_align.objectives.preference.preference import of_each_token


class SimPO(Pairs):
    """`-log sigmoid(beta (s_c - s_r) - gamma)` with `s` the mean of `log pi` over the completion's tokens.

    Parameters
    ----------
    beta : of rewards; the paper has 2 to 10.
    gamma : the margin between rewards that is asked for; the paper has a tenth to a half of beta, and more.
    """

    reference = Reference(
        "Meng et al.",
        2024,
        "SimPO: Simple Preference Optimization with a Reference-Free Reward",
        "https://arxiv.org/abs/2405.14734",
    )

    def __init__(self, *, beta: float = 2.0, gamma: float = 1.0):
        super().__init__(beta=beta)
        if gamma < 0:
            raise UserError(f"gamma is {gamma}; it must be 0 or more")
        self.gamma = gamma

    def scores(self, model: Model, batch: Mapping[str, Tensor | None], found: Told) -> Tensor:
        return of_each_token(summed(found.log_probabilities, found.shifted.weights), found)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return simpo_losses(chosen, rejected, beta=self.beta, gamma=self.gamma)


def simpo_losses(chosen: Tensor, rejected: Tensor, *, beta: float, gamma: float) -> Tensor:
    """(pairs,), of log-probabilities averaged over tokens."""
    return -F.logsigmoid(beta * (chosen - rejected) - gamma)
