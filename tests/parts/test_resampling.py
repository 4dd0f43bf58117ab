"""Intervals by the bootstrap: those of the normal law where it holds, and nothing where all pieces agree."""

from __future__ import annotations

import numpy as np
import pytest
from bakeoff.parts.resampling import means, ratio


def test_a_ratio_of_sums():
    assert ratio(np.array([1.0, 2.0]), np.array([1.0, 5.0]), seed=0).value == 0.5


def test_pieces_that_agree_leave_no_doubt():
    above = np.array([1.0, 2.0, 3.0, 4.0])
    assert ratio(above, 2 * above, seed=0) == (0.5, 0.5, 0.5)
    assert ratio(above[:1], above[1:2], seed=0) == (0.5, 0.5, 0.5)


def test_half_its_width_is_that_of_a_mean():
    draws = np.random.default_rng(1).normal(3.0, 2.0, 400)
    value, low, high = ratio(draws, np.ones(400), seed=0)
    half = 1.96 * draws.std() / 20  # of a mean of 400
    assert (low, high) == (pytest.approx(value - half, abs=0.1 * half), pytest.approx(value + half, abs=0.1 * half))
    assert ratio(draws, np.ones(400), seed=0) == (value, low, high)


def test_means_are_ratios_to_ones():
    values = np.random.default_rng(2).random((3, 50))
    for row, found in zip(values, means(values, seed=4), strict=True):
        assert found == pytest.approx(ratio(row, np.ones(50), seed=4), abs=1e-12)
    assert means(values[:, :1], seed=0)[1] == (values[1, 0],) * 3
