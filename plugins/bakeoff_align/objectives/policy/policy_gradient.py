"""What objectives share that raise the log-probabilities of answers by how good they were."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from bakeoff.errors import UserError
from bakeoff.interfaces.objective import Model, Statistics, Terms
from bakeoff.interfaces.reward import Reward
from torch import Tensor

from bakeoff_align.log_probabilities import Told, mean, of_layers, summed, told
from bakeoff_align.objectives.policy.answering import Answering, of_answers, present
from bakeoff_align.objectives.policy.answers import Rows
from bakeoff_align.objectives.policy.clipping import clipped_policy_loss, is_clipped
from bakeoff_align.objectives.policy.kl import k1
from bakeoff_align.reference import ReferenceModel


class Pull(NamedTuple):
    """What a batch pulls at: terms, "loss" the first, and statistics of them.

    `costs` (B, T), detached : what each token was charged. `share` (B, T) : how much it counts in "loss".
    """

    terms: Terms
    statistics: Statistics
    costs: Tensor
    share: Tensor


class PolicyGradient(Answering):
    """Learns from answers by how good they were, near to the policy that drew them, and to a reference.

    Where `beta` is above 0 a collection also holds `reference` (N, L), the log-probabilities of its tokens under the
    model that training began from; else no such model is kept.

    Answers are drawn from the model's own distribution: what is estimated are means over what the model says. A sampler
    that draws from another one (greedy, a temperature, top-k) is refused.

    Parameters
    ----------
    clip_low, clip_high : a ratio of probabilities below 1 - low or above 1 + high pulls no further.
    beta : what a nat of KL to the reference costs.
    """

    def __init__(
        self,
        *,
        reward: Reward,
        max_new_tokens: int,
        group: int,
        passes: int,
        updates: int,
        clip_low: float,
        clip_high: float,
        beta: float,
    ):
        super().__init__(reward=reward, max_new_tokens=max_new_tokens, group=group, passes=passes, updates=updates)
        if not (0 < clip_low <= 1 and clip_high > 0):
            raise UserError(f"clip_low is {clip_low}, clip_high {clip_high}; 0 < clip_low <= 1, and clip_high above 0")
        if not beta >= 0:
            raise UserError(f"beta is {beta}; it must be 0 or more")
        self.clip_low, self.clip_high, self.beta = clip_low, clip_high, beta
        self.before: ReferenceModel | None = None
        if beta > 0:
            self.by_token = (*self.by_token, "reference")

    def attach(self, model: Model, seed: int) -> None:
        """Keep the model as it stands, where `beta` asks for it."""
        if self.beta > 0:
            self.before = ReferenceModel(model, type(self).__name__)

    def forwards(self) -> float:
        """And by the reference, where there is one."""
        return super().forwards() + (1.0 / self.passes if self.beta > 0 else 0.0)

    def look(self, model: Model, batch: Mapping[str, Tensor | None]) -> Rows:
        """`old`, and `reference` where there is one."""
        found = super().look(model, batch)
        if self.before is not None:
            found["reference"] = self.before.log_probabilities(model, batch)
        return found

    def forward(self, model: Model, batch: Mapping[str, Tensor | None]) -> tuple[Terms, Statistics]:
        """Term "loss", what the class adds to it, one for each auxiliary loss of the layers, and "feedback".

        Choices that learn from what tokens cost are charged what these objectives charge for the token.
        """
        said, rows = told(model, batch), present(batch)
        pull = self.pull(said, rows)
        charged = said._replace(log_probabilities=-pull.costs)
        extra, layers = of_layers(model, charged, pull.terms["loss"][1], pull.share)
        return {**pull.terms, **extra}, {**of_answers(said, rows), **_distance(rows), **pull.statistics, **layers}

    @abstractmethod
    def pull(self, said: Told, rows: Rows) -> Pull:
        """The objective's own loss."""

    def clipped(self, log_ratio: Tensor, advantages: Tensor, counts: Tensor) -> tuple[Tensor, Statistics]:
        """Losses by element, be it a token or an answer, and statistics of those elements that `counts` marks."""
        ratio, clip = log_ratio.exp(), {"low": self.clip_low, "high": self.clip_high}
        beyond = is_clipped(ratio, advantages, **clip) & counts
        sums = {"mean.ratio": (ratio * counts).sum(), "mean.clipped": beyond.to(ratio).sum()}
        statistics = {name: mean(total, counts.sum()) for name, total in sums.items()}
        return clipped_policy_loss(ratio, advantages, **clip), statistics


def _distance(rows: Rows) -> Statistics:
    """KL to the reference, nats an answer: k1 of the policy that drew it, whose mean is the KL itself."""
    if "reference" not in rows:
        return {}
    far = summed(k1(rows["old"], rows["reference"]), rows["weights"])
    return {"mean.kl": mean(far.sum(), (rows["length"] > 0).sum())}
