"""Rewards asked, and what they answer checked."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items

from bakeoff.errors import UserError
from bakeoff.interfaces.reward import Reward, Sample


def scores(reward: Reward, samples: Items[Sample]) -> list[float]:
    """One finite number a sample; `UserError` naming the reward, what is wrong, and the answer that it is wrong for."""
    if not samples:
        return []
    name = type(reward).__name__
    try:
        found = [float(value) for value in reward.score(samples)]
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"reward {name} failed: {type(error).__name__}: {error}") from error
    if len(found) != len(samples):
        raise UserError(f"reward {name} gave {len(found)} numbers for {len(samples)} answers; it must give one each")
    for value, sample in zip(found, samples, strict=True):
        if not math.isfinite(value):
            raise UserError(f"reward {name} is {value} for the answer {sample.text[:80]!r}; it must be a finite number")
    return found
