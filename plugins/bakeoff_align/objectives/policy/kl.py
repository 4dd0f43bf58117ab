"""How far a policy is from its reference: estimates from one drawn token each, and what a nat of it costs.

With `r = log ref - log p` of a token drawn from p, both have the mean KL(p, ref) (Schulman 2020,
http://joschu.net/blog/kl-approx.html). k1 may be negative, and its gradient does not depend on the reference, so it
belongs in the reward; k3 is never negative, and its gradient `1 - ref / p` pulls to the reference: it may be a loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def k1(log_p: Tensor, reference: Tensor) -> Tensor:
    """`log p - log ref`."""
    return log_p - reference


def k3(log_p: Tensor, reference: Tensor) -> Tensor:
    """`exp(r) - 1 - r`."""
    r = reference - log_p
    return torch.expm1(r) - r


class Coefficient(nn.Module):
    """What a nat of KL costs: fixed, or steered so that the KL of an answer comes to a target.

    Ziegler et al. 2019, arXiv:1909.08593, section 2.2: after each collection it is multiplied by
    `1 + gain * clip(KL / target - 1, -0.2, 0.2)`.

    Parameters
    ----------
    beta : its (first) value. target : nats an answer; None: it is fixed.
    """

    def __init__(self, beta: float, *, target: float | None, gain: float = 0.1):
        super().__init__()
        self.target, self.gain = target, gain
        self.value: Tensor
        self.register_buffer("value", torch.tensor(beta, dtype=torch.float32), persistent=target is not None)

    def steer(self, kl: float) -> None:
        """Take notice of the mean KL of a collection's answers, in nats."""
        if self.target is not None:
            error = min(max(kl / self.target - 1, -0.2), 0.2)
            self.value.mul_(1 + self.gain * error)
