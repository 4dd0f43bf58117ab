"""What a policy expects of the rest of an answer, and in which units it tells that."""

from __future__ import annotations

import torch
from bakeoff.interfaces import init
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.part import Part
from torch import Tensor, nn

from bakeoff_align.scored import Readout


class ValueHead(Part):
    """`w h + b` of hidden states, (B, T, D) -> (B, T); 0 before it has learnt anything."""

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.readout = Readout(context.d_model)

    def reset_parameters(self) -> None:
        """All zero."""
        init.fill(self.readout.weight, init.constant(0.0))

    def forward(self, hidden: Tensor) -> Tensor:
        """Values (B, T)."""
        return self.readout(hidden)[..., 0]


class Unit(nn.Module):
    """Values in deviations from a mean, both of the rewards that were seen first; a head that shares its trunk with a
    policy would else change it the more, the larger rewards are or the farther from 0.

    Parameters
    ----------
    learns : False: the mean is 0 and the deviation 1.
    """

    def __init__(self, *, learns: bool):
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        for name, value in {"mean": 0.0, "deviation": 0.0 if learns else 1.0}.items():
            self.register_buffer(name, torch.tensor(value), persistent=learns)

    def learn(self, rewards: Tensor, counts: Tensor) -> None:
        """Take notice of the rewards (N,) of answers, those that `counts` (N,) marks; of the first time alone. Rewards
        that are all equal have a deviation of 1."""
        if self.deviation == 0:
            seen = rewards[counts].double()
            self.mean.copy_(seen.mean())
            spread = seen.std(correction=0)
            self.deviation.copy_(torch.where(spread > 0, spread, 1.0))

    def of_rewards(self, values: Tensor) -> Tensor:
        """From these units to those of rewards."""
        return values * self.deviation.to(values) + self.mean.to(values)

    def of_values(self, rewards: Tensor) -> Tensor:
        """And back."""
        return (rewards - self.mean.to(rewards)) / self.deviation.to(rewards)
