"""Reward `weighted_sum`: several rewards as one."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import Reward, Sample
from bakeoff.parts.judging import scores


class WeightedSum(Reward):
    """`sum_i weights_i rewards_i`.

    Parameters
    ----------
    rewards : what is added up, `{use: …}` each.
    weights : one for each; negative ones turn what is good into what is bad.
    """

    def __init__(self, *, rewards: list[Reward], weights: list[float]):
        if len(rewards) != len(weights) or not rewards:
            raise UserError(
                f"reward 'weighted_sum' has {len(rewards)} rewards and {len(weights)} weights; give one weight for "
                "each, and at least one"
            )
        for weight in weights:
            if not math.isfinite(weight):
                raise UserError(f"reward 'weighted_sum': a weight is {weight}; it must be a finite number")
        self.rewards, self.weights = rewards, weights

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """What is right, and in few tokens."""
        rewards = [{"use": "exact_match"}, {"use": "length_reward", "target": 3}]
        return [{"rewards": rewards, "weights": [1.0, 0.5]}]

    def score(self, samples: Items[Sample]) -> list[float]:
        told = [scores(reward, samples) for reward in self.rewards]
        return [
            sum(weight * value for weight, value in zip(self.weights, values, strict=True))
            for values in zip(*told, strict=True)
        ]
