"""Group relative policy optimisation."""

from __future__ import annotations

from typing import Any, Literal

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.reward import Reward
from torch import Tensor

from bakeoff_align.log_probabilities import Told, mean
from bakeoff_align.objectives.policy.advantages import group_advantages
from bakeoff_align.objectives.policy.answering import at_targets
from bakeoff_align.objectives.policy.answers import Rows
from bakeoff_align.objectives.policy.groups import Grouped
from bakeoff_align.objectives.policy.kl import k3
from bakeoff_align.objectives.policy.normalising import NORMALISERS
from bakeoff_align.objectives.policy.policy_gradient import Pull


class GRPO(Grouped):
    """Each token of an answer is as good as the answer is above the mean of its group.

    A group whose answers are all judged alike has advantages of exactly 0; "mean.degenerate_groups" is their share.
    Length-unbiased (Dr. GRPO, arXiv:2503.20783): `normalise: length` and `standardise: false`.

    Parameters
    ----------
    reward : judges whole answers. group : answers to each prompt, at least 2. max_new_tokens : of an answer; one that
        has not ended by then is judged as it stands.
    passes : how often a collection is gone through. updates : into how many optimizer steps a pass is cut.
    clip_low, clip_high : a ratio of probabilities beyond 1 - low or 1 + high pulls no further.
    beta : what a nat of KL to the reference costs; 0: no reference is kept.
    kl : "loss": beta k3 is added to each token's loss; "reward": beta times the answer's k1 is taken from its reward
        before groups are compared. The two have different optima: with standardise false, the reward's is
        `ref e^(r / beta)` up to a constant, the loss's `beta ref / (c - r)`.
    standardise : divide by the deviation of the group's rewards.
    normalise : "sequence": the mean over answers of the means over their tokens; "batch": the mean over all tokens,
        whose number is the weight of the term; "length": as "sequence", but each answer's sum is divided by
        `max_new_tokens`.
    """

    reference = Reference(
        "Shao et al.",
        2024,
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        "https://arxiv.org/abs/2402.03300",
    )

    def __init__(
        self,
        *,
        reward: Reward,
        max_new_tokens: int,
        group: int = 8,
        passes: int = 1,
        updates: int = 1,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        beta: float = 0.04,
        kl: Literal["loss", "reward"] = "loss",
        standardise: bool = True,
        normalise: Literal["sequence", "batch", "length"] = "sequence",
    ):
        super().__init__(
            reward=reward,
            max_new_tokens=max_new_tokens,
            group=group,
            passes=passes,
            updates=updates,
            clip_low=clip_low,
            clip_high=clip_high,
            beta=beta,
        )
        if kl not in ("loss", "reward"):
            raise UserError(f"kl is '{kl}'; it is 'loss' or 'reward'")
        if normalise not in NORMALISERS:
            raise UserError(f"normalise is '{normalise}'; it is one of {', '.join(NORMALISERS)}")
        self.kl, self.standardise, self.normalise = kl, standardise, normalise

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it was published, and length-unbiased with the KL in the reward."""
        given = {"reward": {"use": "length_reward", "target": 2}, "max_new_tokens": 3, "group": 3}
        unbiased = {"kl": "reward", "standardise": False, "normalise": "length", "clip_high": 0.28}
        return [given, {**given, **unbiased}, {**given, "normalise": "batch", "beta": 0.0}]

    @property
    def charged(self) -> bool:
        """Only where the KL is not in the loss."""
        return self.kl == "reward" and self.beta > 0

    def compared(self, groups: Tensor) -> Tensor:
        """What is above the group's mean, in its standard deviations where `standardise` says so."""
        return group_advantages(groups, standardise=self.standardise)

    def pull(self, said: Told, rows: Rows) -> Pull:
        """Term "loss", whose weight is answers, or tokens where `normalise` is "batch"."""
        log_p, mask = said.log_probabilities, said.shifted.weights > 0
        losses, statistics = self.clipped(log_p - at_targets(rows, "old"), rows["advantages"][:, None], mask)
        if self.kl == "loss" and self.beta > 0:
            losses = losses + self.beta * k3(log_p, at_targets(rows, "reference"))
        share, count = NORMALISERS[self.normalise](mask.to(losses), self.max_new_tokens)
        statistics["mean.degenerate_groups"] = mean(rows["degenerate"].sum(), (rows["length"] > 0).sum())
        return Pull({"loss": ((losses * share).sum(), count)}, statistics, losses.detach(), share)
