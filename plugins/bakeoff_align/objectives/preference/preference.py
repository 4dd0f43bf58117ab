"""What all objectives share that learn from what was preferred."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from bakeoff.errors import UserError
from bakeoff.interfaces.objective import Model, Objective
from torch import Tensor

from bakeoff_align.log_probabilities import Told, lengths, summed
from bakeoff_align.reference import ReferenceModel


class Preference(Objective):
    """Scores completions by what the model says of them; `beta` times the score is the reward that it stands for.

    Parameters
    ----------
    beta : above 0.
    """

    reads_dialogues = True

    def __init__(self, *, beta: float):
        super().__init__()
        if not beta > 0:
            raise UserError(f"beta is {beta}; it must be above 0")
        self.beta = beta

    @abstractmethod
    def scores(self, model: Model, batch: Mapping[str, Tensor | None], found: Told) -> Tensor:
        """(B,), how good the completion of each row is, by what the model says of it."""

    def tokens_wanted(self, length: int) -> int:
        """One more than there are inputs."""
        return length + 1


class Referred(Preference):
    """Scores are log-probabilities less those of the reference: of the model that training began from.

    That is a frozen copy, which checkpoints hold as well; or, where only adapters are trained, the model without them.
    """

    reference_model: ReferenceModel

    def attach(self, model: Model, seed: int) -> None:
        """Make the reference."""
        self.reference_model = ReferenceModel(model, type(self).__name__)

    def forwards(self) -> float:
        """The reference's."""
        return 1.0

    def scores(self, model: Model, batch: Mapping[str, Tensor | None], found: Told) -> Tensor:
        """How much more probable each completion has become, in nats."""
        before = self.reference_model.log_probabilities(model, batch)
        return summed(found.log_probabilities - before, found.shifted.weights)


def of_each_token(sums: Tensor, found: Told) -> Tensor:
    """(B,) sums over targets -> (B,) means over targets; 0 where there are none."""
    return sums / lengths(found.shifted.weights).clamp(min=1)
