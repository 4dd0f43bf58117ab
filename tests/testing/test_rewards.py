"""Faults planted in rewards and in heads that score: each law finds its own."""

import math
import re

import pytest
from bakeoff.interfaces import Head, Reward
from bakeoff.parts.linear import Linear
from bakeoff.testing import check


class Length(Reward):
    """Keeps all laws."""

    def score(self, samples):
        return [float(len(sample.text)) for sample in samples]

    def score_steps(self, samples):
        return [[float(len(word)) for word in sample.text.split()] for sample in samples]


class Ranked(Length):
    def score(self, samples):
        order = sorted(range(len(samples)), key=lambda n: samples[n].text)
        return [float(order.index(n)) for n in range(len(samples))]


class Remembers(Length):
    def __init__(self):
        self.calls = 0

    def score(self, samples):
        self.calls += 1
        return [float(self.calls)] * len(samples)


class Infinite(Length):
    def score(self, samples):
        return [-math.inf if not sample.text else 0.0 for sample in samples]


class Fewer(Length):
    def score(self, samples):
        return super().score(samples)[1:]


class Nothing(Length):
    def score(self, samples):
        return super().score(samples) or None


class Normalised(Length):
    def score_steps(self, samples):
        most = max((len(sample.text) for sample in samples), default=1)
        return [[value / most for value in steps] for steps in super().score_steps(samples)]


class FewerSteps(Length):
    def score_steps(self, samples):
        return super().score_steps(samples)[1:]


class NoNumber(Length):
    def score_steps(self, samples):
        return [[math.nan for _ in steps] for steps in super().score_steps(samples)]


def test_a_reward_that_keeps_them_all():
    assert check(Length).ok


@pytest.mark.parametrize(
    ("cls", "law", "reason"),
    [
        (Ranked, "score", "in the other order, an answer gets"),
        (Remembers, "score", "asked again, an answer gets 3, not 2"),
        (Infinite, "score", "the answer '' gets -inf, which is no finite number"),
        (Fewer, "score", "score gives 7 numbers for 8 answers"),
        (Nothing, "score", r"score of no answers gives None, not \[\]"),
        (Normalised, "steps", "alone, a step of the answer"),
        (FewerSteps, "steps", "score_steps gives 7 lists for 8 answers"),
        (NoNumber, "steps", "gets nan, which is no finite number"),
    ],
)
def test_a_planted_fault_is_found(cls, law, reason):
    (failure,) = [finding for finding in check(cls).findings if finding.status == "failed"]
    assert failure.law == law
    assert re.search(reason, failure.reason), failure.reason


class Mean(Head):
    """Scores what the row says on average."""

    def __init__(self, context):
        super().__init__(context)
        self.readout = Linear(context.d_model, 1)

    def forward(self, hidden, targets=None, weights=None, reduce="sum"):
        return self.readout(hidden)

    def score(self, hidden):
        return self.readout(hidden)[..., 0].mean(1, keepdim=True).expand(hidden.shape[:2])


class Long(Mean):
    def score(self, hidden):
        return self.readout(hidden)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Mean, "T=5: token 0 scores"),
        (Long, r"T=5: scores are \(1, 5, 1\), not \(1, 5\)"),
    ],
)
def test_a_head_that_scores_otherwise_is_found(cls, reason):
    (failure,) = check(cls, laws=["scores"]).findings
    assert failure.status == "failed"
    assert re.search(reason, failure.reason), failure.reason
