"""The report in a real browser, where there is one."""

import dataclasses
import math
import time

import pytest
from bakeoff.compare.report.html import page
from bakeoff.compare.results import Results

pytestmark = pytest.mark.slow

ENTER, SPACE, TAB, RIGHT = ("Enter", 13, "\r"), (" ", 32, " "), ("Tab", 9), ("ArrowRight", 39)


def test_every_chart_is_drawn_in_every_setting(results, show):
    tab = show(results)
    arms = [i for i, arm in enumerate(results.arms) if arm.done()]
    labels = tab.evaluate("probe.all('.controls label').map((label) => label.textContent)")
    assert {"validation", "training loss", "tokens", "FLOPs", "time", "log scale", "peak memory", "state"} <= set(
        labels
    )
    for i in range(len(labels)):
        tab.evaluate(f"probe.all('.controls label')[{i}].click()")
        curves, *tradeoffs = drawn = tab.evaluate("probe.charts()")
        assert len(tradeoffs) == 2
        assert curves["lines"] == arms
        assert all(chart["marks"] == arms for chart in drawn), labels[i]
        assert all(chart["finite"] and chart["inside"] and chart["long"] for chart in drawn), labels[i]
    said = {text for chart in drawn for text in chart["texts"]}
    assert {"training loss, nats per token", "time in training", "bits per byte (↓ better)"} <= said


@pytest.mark.parametrize("scripts", [True, False])
def test_marks_stand_at_their_values(made_up, show, scripts):
    results = Results(*made_up())
    tab = show(results, scripts=scripts)
    for i, arm in enumerate(results.arms):
        for chart in range(3):
            seen = tab.evaluate(f"probe.height(probe.all('.chart .plot')[{chart}], {i})")
            assert seen == pytest.approx(results.quality[arm.name].mean, abs=0.004), (arm.name, chart)


def test_table_sorts_by_pointer_and_by_keyboard(made_up, show):
    tab = show(Results(*made_up()))
    order = "probe.all('.sortable tbody th').map((cell) => cell.textContent)"
    sorted_by = "probe.all('.sortable [aria-sort]').map((head) => [head.textContent, head.getAttribute('aria-sort')])"
    file_order = ["attention", "sliding_window", "mamba2", "hybrid", "window_of_4"]
    assert (tab.evaluate(order), tab.evaluate(sorted_by)) == (file_order, [])
    tab.evaluate("probe.all('.sortable thead button')[1].click()")
    best_first = ["hybrid", "mamba2", "attention", "sliding_window", "window_of_4"]
    assert (tab.evaluate(order), tab.evaluate(sorted_by)) == (best_first, [["bits per byte", "ascending"]])
    tab.evaluate("probe.all('.sortable thead button')[1].focus()")
    tab.press(*ENTER)
    assert (tab.evaluate(order), tab.evaluate(sorted_by)) == (best_first[::-1], [["bits per byte", "descending"]])
    tab.evaluate("probe.all('.sortable thead button')[0].focus()")
    tab.press(*SPACE)
    assert (tab.evaluate(order), tab.evaluate(sorted_by)) == (sorted(file_order), [["arm", "ascending"]])
    tab.evaluate("probe.all('.sortable thead button')[2].click()")
    assert tab.evaluate(order)[-1] == "attention"  # the baseline has no difference
    tab.evaluate("probe.all('.sortable thead button')[2].click()")
    assert tab.evaluate(order)[-1] == "attention"


def test_arms_go_from_all_charts_and_come_back(made_up, show):
    tab = show(Results(*made_up()))
    every, without = [0, 1, 2, 3, 4], [0, 1, 3, 4]
    marks = "probe.charts().map((chart) => chart.marks)"
    pressed = "probe.all('[data-toggle=\"2\"]').map((key) => key.getAttribute('aria-pressed'))"
    assert tab.evaluate(marks) == [every] * 3
    tab.evaluate("probe.all('[data-toggle=\"2\"]')[0].click()")
    assert tab.evaluate(marks) == [without] * 3
    assert tab.evaluate("probe.charts()[0].lines") == without
    assert tab.evaluate(pressed) == ["false", "false"]
    assert tab.evaluate("probe.all('.verdict').length") == 5
    tab.evaluate("probe.all('[data-toggle=\"2\"]')[1].focus()")
    tab.press(*SPACE)
    assert (tab.evaluate(marks), tab.evaluate(pressed)) == ([every] * 3, ["true", "true"])
    tab.evaluate("probe.all('[data-toggle-all]')[0].click()")
    assert tab.evaluate(marks) == [[], [], []]
    assert all(chart["finite"] for chart in tab.evaluate("probe.charts()"))
    tab.evaluate("probe.all('[data-toggle-all]')[1].click()")
    assert tab.evaluate(marks) == [every] * 3


def test_all_that_can_be_used_is_reached_and_seen_by_keyboard(made_up, show):
    tab = show(Results(*made_up()))
    stops = []
    while not stops or stops[-1]["tag"] != "body":
        tab.press(*TAB)
        stops.append(tab.evaluate("probe.focus()"))
        assert len(stops) < 200
    stops.pop()
    assert [stop for stop in stops if not (stop["ring"] and stop["contrast"] >= 3.0 and stop["seen"])] == []
    groups = tab.evaluate("probe.all('fieldset').length")
    others = "button, summary, [tabindex='0'], .skip, input[type=checkbox]"
    assert len(stops) == groups + tab.evaluate(f"probe.all({others!r}).filter((e) => e.checkVisibility()).length")
    assert stops[0]["name"] == "To the verdict"


def test_radios_boxes_and_values_are_operated_by_keyboard(made_up, show):
    results = Results(*made_up())
    tab = show(results)
    tab.evaluate("probe.all('.controls input[type=radio]')[0].focus()")
    tab.press(*RIGHT)
    assert "training loss, nats per token" in tab.evaluate("probe.charts()[0].texts")
    tab.press("ArrowLeft", 37)
    best = f"{results.quality['hybrid'].mean:.3f}"
    wanted = [("End", ["tokens: 4.92M", "hybrid", best]), ("Home", ["window_of_4", "23.9k"])]
    for chart, (key, words) in enumerate(wanted):
        tab.evaluate(f"probe.all('.plot')[{chart}].focus()")
        tab.press(key)
        said = tab.evaluate(f"probe.all('.tip')[{chart}].textContent")
        assert all(word in said for word in words), said
        assert tab.evaluate(f"probe.all('.tip')[{chart}].checkVisibility()")
        tab.press("Escape")
        assert not tab.evaluate(f"probe.all('.tip')[{chart}].checkVisibility()")


@pytest.mark.timeout(60)
def test_sixty_trials_open_and_are_drawn(sixty, tab, tmp_path, capsys):
    path = tmp_path / "report.html"
    text = page(sixty)
    assert len(text.encode()) < 200_000
    path.write_text(text)
    opened = tab(path)
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        opened.open(path)
        seconds.append(time.perf_counter() - begun)
    assert opened.evaluate("document.querySelectorAll('.stage .plot').length") == 3
    with capsys.disabled():
        print(f"\nreport of 60 trials: {len(text.encode()) / 1e3:.0f} kB, drawn in {sorted(seconds)[1]:.2f} s")


def test_names_and_reasons_stay_text(made_up, show, nasty):
    plan, trials = made_up({nasty: 2.0, "b": 2.1, "c": 2.2}, tuned=False)
    trials = [dataclasses.replace(t, state="failed", result=None, reason=nasty) if t.seed == 2 else t for t in trials]
    plan |= {"name": "names", "command": nasty, "notes": [nasty]}
    tab = show(Results(plan, trials))
    tab.evaluate("probe.all('.plot')[0].focus()")
    tab.press("End")
    assert tab.evaluate("document.title") == "names: bakeoff"
    assert tab.evaluate("probe.all('img').length + probe.all('main script').length") == 0
    said = tab.evaluate("document.body.textContent")
    assert said.count(nasty) > 10
    assert tab.evaluate("probe.all('.tip')[0].textContent").count(nasty) == 1


def test_failures_are_in_sight_with_their_reasons(failing, show):
    tab = show(failing)
    said = tab.evaluate("document.querySelector('#failures').innerText")
    assert said.count("RuntimeError: out of memory") == 4
    assert tab.evaluate(
        "probe.all('.verdict').find((e) => e.textContent.includes('window_of_4')).innerText.includes('out of memory')"
    )
    assert tab.evaluate("probe.charts().every((chart) => !chart.marks.includes(4))")


def test_an_empty_comparison_has_a_page(made_up, show):
    plan, _ = made_up()
    tab = show(Results(plan | {"trials": []}, []))
    assert tab.evaluate("document.title") == "made up: bakeoff"
    assert "not run yet" in tab.evaluate("document.body.innerText")


def test_one_value_everywhere_makes_charts_all_the_same(made_up, show):
    plan, trials = made_up({"a": 2.0, "b": 2.0}, seeds=(0,), tuned=False)
    for trial in trials:
        trial.result["measures"] |= {"validation.bits_per_byte": 2.0, "throughput.tokens_per_second": 100.0}
        trial.result["curve"] = [p | {"loss": 2.0, "bits_per_byte": 2.0} for p in trial.result["curve"]]
    tab = show(Results(plan, trials))
    drawn = tab.evaluate("probe.charts()")
    assert all(chart["finite"] and chart["inside"] and chart["marks"] == [0, 1] for chart in drawn)
    assert math.isclose(tab.evaluate("probe.height(probe.all('.chart .plot')[1], 0)"), 2.0, abs_tol=0.01)
