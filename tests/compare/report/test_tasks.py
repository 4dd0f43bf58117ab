"""The section of a task in a real browser, where there is one."""

import pytest
from bakeoff.compare.results import Results

pytestmark = pytest.mark.slow

FIGURES = {
    "accuracy": {"better": "more", "unit": "share", "against": "state_bytes"},
    "state_bytes": {"better": None, "unit": "bytes", "against": None},
}


@pytest.fixture
def tried(made_up):
    """Five arms tried at recall."""
    plan, trials = made_up(tuned=False)
    plan["tasks"] = {"recall": FIGURES}
    for trial in trials:
        i = [arm["name"] for arm in plan["arms"]].index(trial.arm)
        found = {"recall.accuracy": 0.95 - 0.15 * i + 0.01 * trial.seed, "recall.state_bytes": 9000.0 - 1500 * i}
        trial.result["measures"] |= found
        trial.result["shown"] = {"recall": f"<p>shown by {trial.arm}</p>"}
    return Results(plan, trials)


@pytest.mark.parametrize("width", [400, 1400])
def test_a_task_is_shown_with_its_chart_and_what_it_shows(tried, show, width):
    tab = show(tried, width=width)
    tab.evaluate("probe.all('details').forEach((d) => { d.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("probe.overlaps()") == []
    assert tab.evaluate("probe.clipped()") == []
    chart = tab.evaluate("probe.charts()")[-1]
    assert chart["marks"] == [0, 1, 2, 3, 4]
    assert chart["finite"]
    assert chart["inside"]
    assert "recall accuracy (↑ better)" in chart["texts"]
    assert tab.evaluate("document.body.innerText.includes('shown by hybrid')")
    assert tab.evaluate("probe.textContrast().least[0]") >= 4.5


@pytest.mark.parametrize("scripts", [True, False])
def test_marks_stand_at_their_values(tried, show, scripts):
    tab = show(tried, scripts=scripts)
    plots = tab.evaluate("probe.all('.chart .plot').length")
    for i, arm in enumerate(tried.arms):
        seen = tab.evaluate(f"probe.height(probe.all('.chart .plot')[{plots - 1}], {i})")
        assert seen == pytest.approx(0.96 - 0.15 * i, abs=0.004), arm.name
