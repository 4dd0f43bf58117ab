"""Losses that stop pulling once a policy, or a value, is far enough from where the answers were collected."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_policy_loss(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """`-min(ratio A, clip(ratio, 1 - low, 1 + high) A)` (Schulman et al. 2017, arXiv:1707.06347), elementwise."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def naive_clipped_policy_loss(ratio: float, advantage: float, *, low: float, high: float) -> float:
    """The same of one token, case by case."""
    if advantage >= 0:
        return -advantage * min(ratio, 1 + high)
    return -advantage * max(ratio, 1 - low)


def is_clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """Where that loss has no gradient for it: bool, elementwise."""
    return ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))


def clipped_value_loss(values: Tensor, before: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """`max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2`, elementwise."""
    near = before + (values - before).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (near - returns).square())
