"""The fit of a power law: it finds the law that made the points, and a flat line where nothing falls."""

import pytest
from bakeoff.evaluate.tasks.power_law import fit

T = [2 ** (i / 4) for i in range(40)]


@pytest.mark.parametrize("law", [(1.5, 2.0, 0.5), (4.0, 3.2, 0.47), (0.0, 3.0, 0.1), (0.2, 5.0, 2.0)])
def test_the_law_that_made_the_points_is_found(law):
    floor, scale, exponent = law
    found = fit(T, [floor + scale * t**-exponent for t in T])
    assert found[:3] == pytest.approx(law, rel=2e-3, abs=2e-3)
    assert found.error < 1e-4
    assert found.at(16.0) == pytest.approx(floor + scale * 16**-exponent, abs=1e-4)


@pytest.mark.parametrize("values", [[2.0] * 40, [1 + 0.01 * i for i in range(40)]], ids=["flat", "rising"])
def test_what_does_not_fall_is_flat(values):
    found = fit(T, values)
    assert (found.floor, found.scale, found.exponent) == (pytest.approx(sum(values) / 40), 0.0, 0.0)


def test_the_error_is_the_root_mean_square_distance():
    # around a flat line by one nat to either side
    assert fit([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 3.0, 1.0]).error == pytest.approx(1.0)


def test_a_floor_is_never_below_nothing():
    assert fit(T, [max(0.0, 3.0 - 0.3 * i / 4) for i in range(40)]).floor == 0.0


def test_one_point_is_enough():
    assert fit([3.0], [1.25])[:3] == (1.25, 0.0, 0.0)
