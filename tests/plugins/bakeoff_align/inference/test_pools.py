"""Expectations over which answers of a pool are drawn: published values, every subset, and binomial laws."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from bakeoff_align.inference.pools import DRAWN, best_of, budgets, choices, pass_at_k, voted


# human_eval's estimator, n - c < k and the product form; the last column by its numpy form
@pytest.mark.parametrize(
    ("n", "right", "k", "value"),
    [
        (5, 2, 1, 0.4),
        (5, 2, 2, 0.7),
        (5, 2, 5, 1.0),
        (10, 3, 1, 0.3),
        (10, 3, 5, 0.9166666667),
        (100, 10, 10, 0.6695237889),
        (200, 1, 100, 0.5),
        (200, 40, 10, 0.8987105941),
        (200, 13, 100, 0.9999194972),
    ],
)
def test_pass_at_k(n, right, k, value):
    assert pass_at_k(n, right, k) == pytest.approx(value, abs=1e-9)


def test_pass_at_k_is_not_the_biased_form():
    assert pytest.approx(0.83193, abs=1e-9) == 1 - (1 - 3 / 10) ** 5
    assert pass_at_k(10, 3, 5) - 0.83193 > 0.08


@pytest.mark.parametrize("n", [1, 2, 5, 8, 12])
def test_pass_at_k_is_the_mean_over_all_subsets(n):
    for right in range(n + 1):
        for k in range(1, n + 1):
            found = [min(subset) < right for subset in itertools.combinations(range(n), k)]
            assert pass_at_k(n, right, k) == pytest.approx(statistics.mean(found), abs=1e-12)


@pytest.mark.parametrize(("n", "right", "k"), [(5, 2, 0), (5, 2, 6), (5, 6, 1), (5, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be(n, right, k):
    with pytest.raises(ValueError, match=f"n {n}, right {right}, k {k}"):
        pass_at_k(n, right, k)


def test_best_of_is_the_mean_over_all_subsets():
    scores, right = [0.3, -1.0, 7.0, 2.0, 0.5, 4.0], [1.0, 0.0, 0.0, 1.0, 0.5, 1.0]
    for n in range(1, 7):
        best = [right[max(subset, key=scores.__getitem__)] for subset in itertools.combinations(range(6), n)]
        assert best_of(scores, right, n) == pytest.approx(statistics.mean(best), abs=1e-12)


def test_of_equal_scores_each_is_chosen_as_often():
    scores, right = [1.0, 2.0, 2.0, 0.0, 2.0, 1.0], [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    for n in range(1, 7):
        best = []
        for subset in itertools.combinations(range(6), n):
            top = max(scores[i] for i in subset)
            best.append(statistics.mean(right[i] for i in subset if scores[i] == top))
        assert best_of(scores, right, n) == pytest.approx(statistics.mean(best), abs=1e-12)
    assert best_of([0.5] * 6, right, 4) == pytest.approx(0.5, abs=1e-12)  # whoever chooses blindly gets the mean


def test_the_best_of_all_is_the_best():
    assert best_of([3.0, 1.0, 2.0], [1.0, 0.0, 0.0], 3) == 1.0
    with pytest.raises(ValueError, match="n 4 and 3"):
        best_of([3.0, 1.0, 2.0], [1.0, 0.0, 0.0], 4)
    with pytest.raises(ValueError, match="n 2 and 1"):
        best_of([3.0, 1.0, 2.0], [1.0], 2)


def test_a_perfect_verifier_passes_at_k():
    right = [1.0] * 3 + [0.0] * 7
    for n in range(1, 11):
        assert best_of(right, right, n) == pytest.approx(pass_at_k(10, 3, n), abs=1e-12)


def majority(p, n):
    """Of n drawn answers, two to choose from, one of them right with probability p: expected over their number."""
    total = 0.0
    for c in range(n + 1):
        answers, right = ["r"] * c + ["w"] * (n - c), [1] * c + [0] * (n - c)
        total += math.comb(n, c) * p**c * (1 - p) ** (n - c) * voted(answers, [1] * n, right, choices(n, n, 0))
    return total


def test_majority_is_the_binomial_law():
    assert majority(0.6, 5) == pytest.approx(0.68256, abs=1e-12)
    assert majority(0.6, 4) == pytest.approx(majority(0.6, 3), abs=1e-12)  # of equals, each half of the time
    odd = [majority(0.6, n) for n in (1, 3, 5, 7, 9)]
    assert odd == sorted(odd)
    assert odd[0] == pytest.approx(0.6, abs=1e-12)
    assert sorted(majority(0.4, n) for n in (9, 7, 5, 3, 1)) == [majority(0.4, n) for n in (9, 7, 5, 3, 1)]


ANSWERS = ["7", "8", "7", "", "9", "8", "9"]
RIGHT = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
WEIGHTS = [0.5, 0.25, 0.125, 9.0, 0.75, 1.0, 0.0]


@pytest.mark.parametrize("weights", [[1.0] * 7, WEIGHTS])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_votes_are_the_mean_over_all_subsets(weights, n):
    found = []
    for subset in itertools.combinations(range(7), n):
        votes = {}
        for i in subset:
            if ANSWERS[i]:
                votes[ANSWERS[i]] = votes.get(ANSWERS[i], 0) + weights[i]
        first = [answer for answer, weight in votes.items() if weight == max(votes.values())]
        found.append(first.count("7") / len(first) if first else 0)
    assert voted(ANSWERS, weights, RIGHT, choices(7, n, 0)) == pytest.approx(statistics.mean(found), abs=1e-12)


def test_sums_that_differ_by_rounding_are_equal():
    among = choices(3, 3, 0)
    assert 0.1 + 0.2 != 0.3
    assert voted(["a", "a", "b"], [0.1, 0.2, 0.3], [1, 1, 0], among) == 0.5


def test_nobody_votes():
    assert voted(["", ""], [1.0, 1.0], [1.0, 1.0], choices(2, 1, 0)) == 0.0


def test_choices_are_all_or_drawn():
    every = choices(6, 3, seed=0)
    assert every.shape == (20, 6)
    assert len({tuple(row) for row in every}) == 20
    some = choices(40, 20, seed=0)
    assert some.shape == (DRAWN, 40)
    assert set(some.sum(1)) == {20}
    assert np.array_equal(some, choices(40, 20, seed=0))
    # each answer is among them half of the time: within 4 standard deviations of a binomial share
    assert abs(some.mean(0) - 0.5).max() < 4 * math.sqrt(0.25 / DRAWN)


def test_budgets():
    assert (budgets(1), budgets(16), budgets(20)) == ([1], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 20])
