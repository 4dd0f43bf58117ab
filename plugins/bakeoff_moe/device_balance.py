"""Balance `device_balance`: load over the devices that hold the experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bakeoff.interfaces import Balance, Reference, Routing, Sequence
from torch import Tensor

from bakeoff_moe.load_balance import share, shares


class DeviceBalance(Balance):
    """`G sum_g f_g P_g` over G groups of neighbouring experts, such as those that share a device.

    f_g and P_g are the group's share of all choices and its mean probability; 1 where all groups are alike.

    Parameters
    ----------
    groups : G, which divides the number of experts.
    coefficient : the loss is multiplied by it.
    """

    reference = Reference(
        "Dai et al.",
        2024,
        "DeepSeekMoE: Towards Ultimate Expert Specialization in Mixture-of-Experts Language Models",
        "https://arxiv.org/abs/2401.06066",
    )
    name = "device_balance"
    reads = "probabilities"

    def __init__(self, *, groups: int, coefficient: float = 0.05):
        self.groups, self.coefficient = groups, coefficient

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Two devices."""
        return [{"groups": 2}]

    def check(self, n_experts: int) -> None:
        """Raise `ValueError` unless the groups divide the experts."""
        if self.groups < 1 or n_experts % self.groups:
            raise ValueError(f"device_balance: groups is {self.groups}; it must divide n_experts, {n_experts}")

    def sums(self, routing: Routing, real: Tensor | None, sequence: Sequence) -> dict[str, Tensor]:
        """Choices (E,) and probabilities (E,)."""
        return shares(routing, real)

    def loss(self, sums: Mapping[str, Tensor]) -> Tensor:
        """Of a layer and a micro-batch."""
        f, p = (share(sums[name]).view(self.groups, -1).sum(1) for name in ("chosen", "probabilities"))
        return self.coefficient * self.groups * (f * p).sum()
