"""Faults planted in tasks."""

from __future__ import annotations

import math

import pytest
import torch
from bakeoff.interfaces import Answer, Figure, Task
from bakeoff.testing import check


class Sound(Task):
    """Says nothing of the model."""

    figures = {"score": Figure("more", "share"), "size": Figure()}  # noqa: RUF012

    def measure(self, measured, progress):
        return Answer({"score": 0.5, "size": 3.0})


class Nameless(Sound):
    figures = {}  # noqa: RUF012


class Misdirected(Sound):
    figures = {"score": Figure("higher"), "size": Figure()}  # noqa: RUF012


class DrawnAgainstNothing(Sound):
    figures = {"score": Figure("more", against="weight"), "size": Figure()}  # noqa: RUF012


class Undeclared(Sound):
    def measure(self, measured, progress):
        return Answer({"score": 0.5, "extra": 1.0})


class Endless(Sound):
    def measure(self, measured, progress):
        return Answer({"score": math.inf})


class TooMuch(Sound):
    def measure(self, measured, progress):
        return Answer({"score": 1.5})


class NothingToJudgeBy(Sound):
    def measure(self, measured, progress):
        return Answer({"size": 1.0})


class KeptOtherwise(Sound):
    def measure(self, measured, progress):
        return super().measure(measured, progress)._replace(data={"curve": {1: (0.5, 2.0)}})


class NotKept(Sound):
    def measure(self, measured, progress):
        return super().measure(measured, progress)._replace(data={"curve": [math.nan]})


class Trains(Sound):
    def measure(self, measured, progress):
        with torch.no_grad():
            next(measured.model.parameters()).add_(1)
        return super().measure(measured, progress)


class LeavesGradients(Sound):
    def measure(self, measured, progress):
        next(measured.model.parameters()).square().sum().backward()
        return super().measure(measured, progress)


class LeavesEvaluation(Sound):
    def measure(self, measured, progress):
        measured.model.eval()
        return super().measure(measured, progress)


class Forgetful(Sound):
    """Answers otherwise each time."""

    calls = 0

    def measure(self, measured, progress):
        Forgetful.calls += 1
        return Answer({"score": 1 / Forgetful.calls})


def test_a_sound_task_passes():
    assert not check(Sound).failures


def test_randomness_that_begins_with_the_seed_is_no_fault():
    class Draws(Sound):
        def measure(self, measured, progress):
            return Answer({"score": torch.rand(1).item()})

    assert not check(Draws).failures


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Nameless, "`figures` names no figure"),
        (Misdirected, "figure 'score' is"),
        (DrawnAgainstNothing, "figure 'score' is drawn against 'weight', which is no figure of the task"),
        (Undeclared, "`figures` does not declare 'extra'"),
        (Endless, "figure 'score' is inf"),
        (TooMuch, "figure 'score' is a share, but is 1.5"),
        (NothingToJudgeBy, "no figure by which arms are judged"),
        (KeptOtherwise, "data come back otherwise from JSON"),
        (NotKept, "data cannot be kept as JSON: Out of range float"),
        (Trains, "measure changes the model: backbone.embed.weight"),
        (LeavesGradients, "measure changes the model: it leaves gradients"),
        (LeavesEvaluation, "measure changes the model's mode"),
        (Forgetful, "asked again with the same seed, it answers"),
    ],
)
def test_planted_faults_are_caught(task, said):
    (failure,) = check(task).failures
    assert said in failure.reason
