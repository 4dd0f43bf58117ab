"""Faults planted in balances: caught, each by its law."""

from __future__ import annotations

import pytest
import torch
from bakeoff.interfaces import Balance
from bakeoff.testing import check

from .stand_ins import broken


class Peak(Balance):
    """The mean of each token's largest probability."""

    name = "peak"
    reads = "probabilities"

    def sums(self, routing, real, sequence):
        best = routing.probabilities.amax(-1)
        real = torch.ones_like(best) if real is None else real.to(best.dtype)
        return {"best": (best * real).sum(), "tokens": real.sum()}

    def loss(self, sums):
        return sums["best"] / sums["tokens"].clamp_min(1)


class CountsPadding(Peak):
    def sums(self, routing, real, sequence):
        return super().sums(routing, None, sequence)


class OfTheBatch(Peak):
    """Adds what is no sum, and claims that it is one."""

    def sums(self, routing, real, sequence):
        sums = super().sums(routing, real, sequence)
        return {**sums, "best": sums["best"].square()}


class OfTheCall(OfTheBatch):
    """Says so, but sums of rows must add up all the same."""

    additive = False


class TooModest(Peak):
    additive = False


class DividesByNothing(Peak):
    def loss(self, sums):
        return sums["best"] / sums["tokens"]


class AVector(Peak):
    def loss(self, sums):
        return super().loss(sums).expand(2)


class Steep(Peak):
    """Its loss is finite, its gradient is not where probabilities are equal."""

    def sums(self, routing, real, sequence):
        spread = routing.probabilities.var(-1, correction=0).sqrt()
        return {**super().sums(routing, real, sequence), "best": spread.sum()}


def test_a_balance_without_faults_passes():
    assert not check(Peak).failures


@pytest.mark.parametrize(
    ("balance", "law", "told"),
    [
        (CountsPadding, "padding", "aux 'peak.best' counts padding"),
        (OfTheBatch, "split", "aux 'peak.best' does not add up"),
        (OfTheCall, "padding", "aux 'peak.best' counts padding"),
        (TooModest, "split", "disclaims `additive`"),
        (DividesByNothing, "loss", "padding alone: the loss is nan"),
        (AVector, "loss", "not one finite number"),
        (Steep, "loss", "a gradient of the loss is not finite"),
    ],
)
def test_faults_are_caught(balance, law, told):
    assert told in broken(balance)[law]
