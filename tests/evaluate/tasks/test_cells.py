"""Grids of lengths and depths, against values by hand."""

import math

import pytest
from bakeoff.evaluate.tasks.cells import Cells, cells_html, check_grid, depths_of, mean_of, spaced


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((256, 1024, 4), [256, 512, 768, 1024]),
        ((0, 100, 4), [0, 33, 67, 100]),
        ((1000, 32000, 8), [1000, 5429, 9857, 14286, 18714, 23143, 27571, 32000]),
        ((5, 6, 4), [5, 6]),
        ((5, 90, 1), [90]),
    ],
)
def test_lengths_are_rounded_from_even_spacing(given, found):
    assert spaced(*given) == found


def test_depths_reach_from_one_end_to_the_other():
    assert depths_of(5, "linear") == [0, 25, 50, 75, 100]
    # 100 / (1 + e^2.5) = 7.586 where x is 25, and as much from the end where it is 75
    assert depths_of(5, "sigmoid") == [0, pytest.approx(7.586, abs=1e-3), 50, pytest.approx(92.414, abs=1e-3), 100]
    assert depths_of(5, "sigmoid")[1] == pytest.approx(100 / (1 + math.exp(2.5)), abs=1e-3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lengths": 0}, "lengths is 0; it must be at least 1"),
        ({"longest": 9}, "longest is 9, shortest 10; longest must be at least as much"),
        ({"spacing": "even"}, "spacing is 'even'; it must be linear or sigmoid"),
    ],
)
def test_slips(wrong, said):
    good = {"lengths": 2, "depths": 2, "spacing": "linear", "shortest": 10, "longest": 20}
    check_grid(**good)
    with pytest.raises(ValueError, match=said):
        check_grid(**{**good, **wrong})


def test_a_grid_is_told_in_numbers_and_means_are_cell_by_cell():
    one = Cells([10, 2000], [0.0, 7.586], [[1.0, 0.5], [0.0, 0.25]])
    mean = mean_of([one, one._replace(values=[[0.0, 0.5], [0.5, 0.75]])])
    assert mean.values == [[0.5, 0.5], [0.25, 0.5]]
    assert (mean.mean, one.worst) == (0.4375, 0.0)
    html = cells_html(one, "a <b>")
    assert "<caption>a &lt;b&gt;</caption>" in html
    assert ">2,000</th>" in html
    assert "7.586 %" in html
    for cell in ('<td class="p6">100</td>', '<td class="p3">50</td>', "<td>0</td>", ">25</td>"):
        assert cell in html
