"""Reward `gated`: a reward that only those get who pass another."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import Reward, Sample
from bakeoff.parts.judging import scores


class Gated(Reward):
    """`reward` where `gate` is at least `threshold`, else `otherwise`; only answers that pass are asked for `reward`.

    Parameters
    ----------
    gate : decides, such as `{use: format_reward, …}`.
    reward : what is given to those that pass.
    threshold : of the gate.
    otherwise : what the others get.
    """

    def __init__(self, *, gate: Reward, reward: Reward, threshold: float = 1.0, otherwise: float = 0.0):
        for name, value in (("threshold", threshold), ("otherwise", otherwise)):
            if not math.isfinite(value):
                raise UserError(f"reward 'gated': {name} is {value}; it must be a finite number")
        self.gate, self.reward, self.threshold, self.otherwise = gate, reward, threshold, otherwise

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Right answers count where a scratchpad is closed."""
        gate = {"use": "format_reward", "markers": ["</scratch>"]}
        return [{"gate": gate, "reward": {"use": "exact_match"}, "threshold": 0.5, "otherwise": -1.0}]

    def score(self, samples: Items[Sample]) -> list[float]:
        passed = [value >= self.threshold for value in scores(self.gate, samples)]
        given = iter(scores(self.reward, [sample for sample, there in zip(samples, passed, strict=True) if there]))
        return [next(given) if there else self.otherwise for there in passed]
