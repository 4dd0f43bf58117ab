"""Reward `length_reward`: tokens beyond a target cost."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import Reward, Sample


class LengthReward(Reward):
    """`-min(cap, per_token * (tokens - target))` where an answer has more tokens than the target, else 0.

    Parameters
    ----------
    target : tokens that are free, the end id among them.
    per_token : what each further one costs.
    cap : the most that an answer pays; None: there is no limit.
    """

    def __init__(self, *, target: int, per_token: float = 0.01, cap: float | None = None):
        if target < 0:
            raise UserError(f"reward 'length_reward': target is {target}; it must be at least 0")
        for name, value in (("per_token", per_token), ("cap", cap)):
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"reward 'length_reward': {name} is {value}; it must be positive")
        self.target, self.per_token, self.cap = target, per_token, cap

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Without a limit and with one."""
        return [{"target": 4}, {"target": 0, "per_token": 0.5, "cap": 2.0}]

    def score(self, samples: Items[Sample]) -> list[float]:
        return [self._score(len(sample.tokens)) for sample in samples]

    def _score(self, tokens: int) -> float:
        cost = self.per_token * max(0, tokens - self.target)
        return 0.0 - (cost if self.cap is None else min(self.cap, cost))
