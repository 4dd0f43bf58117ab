"""The page of accuracy by length: all arms that were tried in one chart, as means over seeds."""

import re

import pytest
from bakeoff.compare.report.html import page
from bakeoff.compare.report.lines import lines
from bakeoff.compare.report.reasoning import LengthCurves
from bakeoff.compare.results import Results
from bakeoff.parts.curve_html import Line, curve_html
from bakeoff_align.reasoning.length_generalisation import LengthGeneralisation

ARMS = ("attention", "mamba2")
LABEL = "length_generalisation"


@pytest.fixture
def tried(made_up):
    """Two of five arms were tried: right up to length 4, and of length 8 by a tenth more with each seed."""

    def make(trained=((1, 4), (1, 4))):
        plan, trials = made_up(tuned=False)
        plan["tasks"] = {LABEL: {name: figure._asdict() for name, figure in LengthGeneralisation.figures.items()}}
        for trial in trials:
            if trial.arm in ARMS:
                share = 0.2 + 0.1 * trial.seed
                curve = [[n, 1.0, 1.0, 1.0, 10] for n in (1, 2, 4)] + [[8, share, share, share, 10]]
                drawn = {"trained": list(trained[ARMS.index(trial.arm)]), "curve": curve}
                trial.result.setdefault("drawn", {})[LABEL] = drawn
                trial.result["measures"] |= {f"{LABEL}.accuracy": 0.8}
        return Results(plan, trials)

    return make


def test_there_is_no_page_where_no_arm_was_tried(made_up):
    results = Results(*made_up())
    assert LengthCurves().html(results) == ""
    assert LengthCurves.title not in page(results)


def test_arms_stand_in_one_chart_with_where_training_ended(tried):
    html = LengthCurves().html(tried())
    (figure,) = html.split("<figure")[1:]
    assert figure.count('class="line"') == figure.count('class="band"') == 2
    assert html.count("longest trained") == 1
    for arm in ("attention", "mamba2"):
        assert f"{arm}</span>" in html
    assert "sliding_window</span>" not in html
    # length 4 stands two thirds of the way from 1 to 8 on an axis of powers of two, which begins at 3 and ends at 93
    assert 'x1="63.0%" x2="63.0%"' in html


def test_no_end_of_training_is_drawn_where_arms_differ_in_it(tried):
    assert "longest trained" not in LengthCurves().html(tried(((1, 4), (1, 2))))


def test_points_are_means_over_seeds(tried):
    """Of length 8, 0.2, 0.3 and 0.4."""
    (task,) = tried().tasks
    first, second = lines(task, ["attention", "mamba2"], lambda one: [(n, share) for n, share, *_ in one["curve"]])
    assert (first.name, second.name, first.number, second.number) == ("attention", "mamba2", 0, 1)
    assert first.points[:3] == [(1, 1.0), (2, 1.0), (4, 1.0)]
    assert first.points[3] == (8, pytest.approx(0.3))
    low, high = first.band[3]
    # Student's t of 2 degrees of freedom is 4.3027; the standard deviation is 0.1
    assert (high - low) / 2 == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)


def test_intervals_of_shares_end_where_shares_do(tried):
    """Of length 8, 0, 0.1 and 0.2 here, whose interval would begin below 0."""
    (task,) = tried().tasks

    def less(one):
        return [(n, max(share - 0.2, 0.0)) for n, share, *_ in one["curve"]]

    for shares, lowest in ((True, 0.0), (False, 0.1 - 4.3027 * 0.1 / 3**0.5)):
        line = next(lines(task, ["attention", "mamba2"], less, shares=shares))
        low, high = line.band[3]
        assert low == pytest.approx(lowest, abs=1e-4)
        assert high == pytest.approx(0.1 + 4.3027 * 0.1 / 3**0.5, rel=1e-4)


def test_an_axis_that_holds_few_powers_of_two_is_told_by_its_points():
    def axis(*xs):
        html = curve_html([Line("a", [(x, 0.5) for x in xs], 0)], "length", "share")
        return re.findall(r'text-anchor="middle">(\w+)<', html)

    assert axis(6, 8, 10, 12) == ["6", "8", "10", "12"]
    assert axis(1, 2, 3, 4) == ["1", "2", "4"]
