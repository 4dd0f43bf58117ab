"""Identity preference optimisation."""

from __future__ import annotations

from collections.abc import Mapping

from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.objective import Model
from torch import Tensor

from bakeoff_align.log_probabilities import Told
from bakeoff_align.objectives.preference.pairs import Pairs
from bakeoff_align.objectives.preference.preference import Referred, of_each_token


class IPO(Referred, Pairs):
    """`(s_c - s_r - 1 / (2 beta))^2` with `s` the mean of `log pi - log pi_ref` over the completion's tokens.

    The paper's log-ratios are those of whole completions; means over tokens are what its authors have used.

    Parameters
    ----------
    beta : tau of the paper; the margin of a pair is drawn to 1 / (2 beta), and no further.
    """

    reference = Reference(
        "Azar et al.",
        2023,
        "A General Theoretical Paradigm to Understand Learning from Human Preferences",
        "https://arxiv.org/abs/2310.12036",
    )

    def __init__(self, *, beta: float = 0.1):
        super().__init__(beta=beta)

    def scores(self, model: Model, batch: Mapping[str, Tensor | None], found: Told) -> Tensor:
        return of_each_token(super().scores(model, batch, found), found)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return ipo_losses(chosen, rejected, beta=self.beta)


def ipo_losses(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """(pairs,), of log-ratios to the reference, averaged over tokens."""
    return (chosen - rejected - 1 / (2 * beta)).square()
