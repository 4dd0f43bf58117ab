"""Schedules against values worked out by hand."""

import math

import pytest
from bakeoff.errors import UserError
from bakeoff.parts.schedules import Constant, Cosine, Linear, WarmupStableDecay


def factors(schedule, total):
    return [schedule.factor(step, total) for step in range(total)]


def test_constant_is_one_after_a_warm_up_that_starts_above_zero():
    assert factors(Constant(), 4) == [1, 1, 1, 1]
    assert factors(Constant(warmup=4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]


def test_a_share_of_the_run_is_as_many_steps():
    assert factors(Constant(warmup=0.5), 4) == factors(Constant(warmup=2), 4) == [0.5, 1, 1, 1]


def test_linear_reaches_the_final_factor_one_step_after_the_last():
    assert factors(Linear(), 4) == [1, 0.75, 0.5, 0.25]
    assert factors(Linear(warmup=2, final=0.5), 6) == [0.5, 1, 1, 0.875, 0.75, 0.625]
    assert Linear(final=0.5).factor(4, 4) == 0.5


def test_cosine_by_hand():
    got = factors(Cosine(final=0.0), 4)
    half = math.sqrt(0.5)
    assert got == pytest.approx([1, (1 + half) / 2, 0.5, (1 - half) / 2])
    assert Cosine(warmup=2, final=0.1).factor(6, 10) == pytest.approx(0.55)  # half way: (1 + 0.1) / 2
    assert Cosine(final=0.1).factor(10, 10) == pytest.approx(0.1)


def test_warmup_stable_decay_by_hand():
    assert factors(WarmupStableDecay(warmup=2, decay=4), 10) == [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert factors(WarmupStableDecay(decay=0.5, final=0.5), 4) == [1, 1, 1, 0.75]
    assert factors(WarmupStableDecay(decay=0), 3) == [1, 1, 1]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (lambda: Constant(warmup=-1), "warmup is -1"),
        (lambda: Constant(warmup=2.5), "warmup is 2.5"),
        (lambda: Linear(final=2.0), "final is 2.0"),
        (lambda: Constant(warmup=20).factor(0, 10), "20 steps, but the run has only 10"),
        (lambda: WarmupStableDecay(warmup=6, decay=5).factor(6, 10), "6 steps and a decay of 5 do not fit a run of 10"),
    ],
)
def test_amounts_that_cannot_be_are_refused_with_both_numbers(schedule, words):
    with pytest.raises(UserError, match=words):
        schedule()
