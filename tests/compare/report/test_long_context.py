"""The pages of long contexts: all arms that were tried side by side, as means over seeds, and none where none was."""

import re

import pytest
from bakeoff.compare.report.html import page
from bakeoff.compare.report.long_context import KeyValueGrids, LossCurves, NeedleGrids
from bakeoff.compare.results import Results
from bakeoff.evaluate.tasks.key_value import KeyValue
from bakeoff.evaluate.tasks.loss_by_position import LossByPosition
from bakeoff.evaluate.tasks.needle import Needle

PAGES = (NeedleGrids, LossCurves, KeyValueGrids)
LABELS = {"needle(lengths=3)": Needle, "loss_by_position(multiples=[1, 4])": LossByPosition, "key_value": KeyValue}
ARMS = ("attention", "mamba2", "hybrid")
T = [2 ** (i / 4) for i in range(41)]


def grid(arm, seed):
    """Shares that fall with length, and by a tenth with each seed."""
    values = [[max(0.0, 1 - 0.2 * arm - 0.1 * seed - 0.3 * j) for j in range(3)] for _ in range(5)]
    return {"cells": {"lengths": [256, 1024, 16384], "depths": [0.0, 25.0, 50.0, 75.0, 100.0], "values": values}}


def curves(arm, seed):
    law = {"floor": 1.2 + 0.05 * arm, "scale": 1.5, "exponent": 0.4, "error": 0.02}

    def points(most):
        return [[t, law["floor"] + law["scale"] * t**-0.4 + 0.02 * seed, 100] for t in T if t <= most]

    means = {"1": 1.6 + 0.1 * arm + 0.1 * seed, "4": 1.5}
    return {"length": 256, "law": law, "curves": {"1": points(256), "4": points(1024)}, "means": means}


@pytest.fixture
def tried(made_up):
    """Three of five arms were tried at all three tasks."""
    plan, trials = made_up(tuned=False)
    plan["tasks"] = {label: {n: f._asdict() for n, f in task.figures.items()} for label, task in LABELS.items()}
    for trial in trials:
        if trial.arm in ARMS:
            arm = ARMS.index(trial.arm)
            for label, task in LABELS.items():
                drawn = curves if task is LossByPosition else grid
                trial.result.setdefault("drawn", {})[label] = drawn(arm, trial.seed)
                trial.result.setdefault("shown", {})[label] = f"<p>{trial.arm} alone</p>"
                trial.result["measures"] |= {f"{label}.{name}": 0.5 - 0.1 * arm for name in task.figures}
    return Results(plan, trials)


def section(html, title):
    """The text of a section."""
    (found,) = [part for part in html.split("<section")[1:] if f"<h2>{title}</h2>" in part]
    return found.partition("</section>")[0]


def test_there_is_no_page_where_no_arm_was_tried(made_up):
    results = Results(*made_up())
    assert [one().html(results) for one in PAGES] == ["", "", ""]
    assert not any(one.title in page(results) for one in PAGES)


@pytest.mark.parametrize("cls", [NeedleGrids, KeyValueGrids])
def test_grids_stand_side_by_side_as_means_over_seeds(tried, cls):
    html = section(page(tried), cls.title)
    assert re.findall(r"<caption>(.*?)</caption>", html) == list(ARMS)
    first, last = (re.findall(r"<td[^>]*>(.*?)</td>", part) for part in html.split("<caption>")[1:4:2])
    # 1 - 0.1, less 0.3 for each length, of which the mean over seeds 0, 1 and 2 takes 0.1
    assert first == ["90", "60", "30"] * 5
    # 0.6, 0.3 and 0 on seed 0; 0.5, 0.2, 0; 0.4, 0.1, 0
    assert last == ["50", "20", "0"] * 5
    assert "alone" not in html


def test_all_arms_stand_in_one_chart_for_each_length_with_their_laws(tried):
    html = section(page(tried), LossCurves.title)
    charts = html.split("<figure")[1:]
    assert len(charts) == 2
    # at the training length each arm's law stands beside its curve
    assert [chart.count('class="line"') for chart in charts] == [6, 3]
    assert [chart.count("training length</text>") for chart in charts] == [0, 1]
    assert re.findall(r"<figcaption>(.*?)</figcaption>", html) == [
        "nats per token, rows of 256 tokens, 1x the training length",
        "nats per token, rows of 1,024 tokens, 4x the training length",
    ]
    rows = [re.findall(r"<(?:td|div)>([^<].*?)</(?:td|div)>", row) for row in html.split("<tr>")[2:]]
    assert [row[:2] for row in rows] == [["1.700", "1.500"], ["1.800", "1.500"], ["1.900", "1.500"]]
    assert rows[1][2:] == ["1.25 + 1.50 t<sup>−0.40</sup> ± 0.020"] * 3


def test_a_task_that_was_asked_twice_has_a_heading_each(tried):
    tried.plan["tasks"]["needle"] = tried.plan["tasks"]["needle(lengths=3)"]
    for trial in tried.trials:
        if trial.arm == "mamba2":
            trial.result["drawn"]["needle"] = grid(1, trial.seed)
    html = NeedleGrids().html(Results(tried.plan, tried.trials))
    assert re.findall("<h3>(.*?)</h3>", html) == ["needle(lengths=3)", "needle"]
    assert re.findall("<caption>(.*?)</caption>", html) == [*ARMS, "mamba2"]


def test_what_the_tasks_show_is_not_shown_again(tried):
    html = page(tried)
    for label, cls in zip(LABELS, PAGES, strict=True):
        assert f"under “{cls.title}”" in section(html, f"Task {label}")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_they_can_be_read_in_a_browser(tried, show, width, dark):
    tab = show(tried, width=width, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("probe.overlaps()") == []
    assert tab.evaluate("probe.clipped()") == []
    assert tab.evaluate("probe.textContrast().least[0]") >= 4.5
    assert tab.evaluate("probe.markContrast().least[0]") >= 3.0
    for cls in PAGES:
        assert tab.evaluate(f"document.body.innerText.includes('{cls.title}')")
