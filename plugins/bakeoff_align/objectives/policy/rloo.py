"""REINFORCE with a leave-one-out baseline."""

from __future__ import annotations

from typing import Any

from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.reward import Reward
from torch import Tensor

from bakeoff_align.log_probabilities import Told, mean, summed
from bakeoff_align.objectives.policy.advantages import leave_one_out
from bakeoff_align.objectives.policy.answering import at_targets
from bakeoff_align.objectives.policy.answers import Rows
from bakeoff_align.objectives.policy.groups import Grouped
from bakeoff_align.objectives.policy.normalising import by_sequence
from bakeoff_align.objectives.policy.policy_gradient import Pull


class RLOO(Grouped):
    """A whole answer is one action, as good as its reward, less its KL, is above the mean of the others of its group.

    With one pass of one update its gradient is that of REINFORCE; further ones are clipped by the ratio of answers'
    probabilities. A group whose answers are all judged alike has advantages of exactly 0; "mean.degenerate_groups" is
    their share.

    Parameters
    ----------
    reward : judges whole answers. group : answers to each prompt, at least 2. max_new_tokens : of an answer; one that
        has not ended by then is judged as it stands.
    passes : how often a collection is gone through. updates : into how many optimizer steps a pass is cut.
    clip_low, clip_high : a ratio of probabilities of an answer below 1 - low or above 1 + high pulls no further.
    beta : what a nat of an answer's KL to the reference (k1) takes from its reward; 0: no reference is kept.
    """

    reference = Reference(
        "Ahmadian et al.",
        2024,
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
        "https://arxiv.org/abs/2402.14740",
    )

    def __init__(
        self,
        *,
        reward: Reward,
        max_new_tokens: int,
        group: int = 4,
        passes: int = 1,
        updates: int = 1,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        beta: float = 0.05,
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

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With and without a reference."""
        given = {"reward": {"use": "length_reward", "target": 2}, "max_new_tokens": 3, "group": 3}
        return [given, {**given, "beta": 0.0}]

    def compared(self, groups: Tensor) -> Tensor:
        """What is above the mean of the others."""
        return leave_one_out(groups)

    def pull(self, said: Told, rows: Rows) -> Pull:
        """Term "loss", whose weight is answers."""
        weights = said.shifted.weights
        answered = (weights > 0).any(1)
        log_ratio = summed(said.log_probabilities - at_targets(rows, "old"), weights)
        losses, statistics = self.clipped(log_ratio, rows["advantages"], answered)
        share, count = by_sequence((weights > 0).to(losses), self.max_new_tokens)
        statistics["mean.degenerate_groups"] = mean(rows["degenerate"].sum(), count)
        costs = losses.detach()[:, None].expand_as(share)
        return Pull({"loss": ((losses * answered).sum(), count)}, statistics, costs, share)
