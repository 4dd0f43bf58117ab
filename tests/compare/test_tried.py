"""Tasks in results and reports: the verdict goes the way that a figure's better values do."""

from __future__ import annotations

import io

import pytest
from bakeoff.compare.figures import figures
from bakeoff.compare.report.charts import chart_data
from bakeoff.compare.report.comma import csv_text
from bakeoff.compare.report.html import page
from bakeoff.compare.report.markdown import markdown
from bakeoff.compare.results import Results
from bakeoff.compare.table import show
from rich.console import Console

FIGURES = {
    "accuracy": {"better": "more", "unit": "share", "against": "state_bytes"},
    "error": {"better": "less", "unit": "", "against": None},
    "state_bytes": {"better": None, "unit": "bytes", "against": None},
    "unit": {"better": None, "unit": "index", "against": None},
}
ACCURACY = {
    "attention": (0.90, 0.91, 0.92),
    "sliding_window": (0.90, 0.92, 0.91),
    "mamba2": (0.80, 0.80, 0.83),
    "hybrid": (0.95, 0.96, 0.97),
}


@pytest.fixture
def tried(made_up):
    """Five arms tried at a task, of which the last cannot do it."""
    plan, trials = made_up(tuned=False)
    plan["tasks"] = {"recall(pairs=8)": FIGURES}
    for trial in trials:
        if trial.arm == "window_of_4":
            trial.result["unmeasured"] = {"recall(pairs=8)": "it keeps no state"}
            continue
        accuracy = ACCURACY[trial.arm][trial.seed]
        found = {"accuracy": accuracy, "error": 1 - accuracy, "state_bytes": 1024.0 * len(trial.arm)}
        found["unit"] = 7.0 + trial.seed
        trial.result["measures"] |= {f"recall(pairs=8).{name}": value for name, value in found.items()}
        trial.result["shown"] = {"recall(pairs=8)": f"<p>seen by {trial.arm} {trial.seed}</p>"}
    return Results(plan, trials)


def test_more_is_better_where_the_figure_says_so(tried):
    (task,) = tried.tasks
    kinds = {name: task.verdict("accuracy", name).kind for name in ACCURACY}
    assert kinds == {"attention": "baseline", "sliding_window": "none shown", "mamba2": "worse", "hybrid": "better"}
    assert {name: task.verdict("error", name).kind for name in ACCURACY} == kinds
    # differences 0.05 on each seed: no spread, so the interval is a point
    better = "better than attention by 0.050 recall accuracy (95 % interval 0.050 to 0.050, 3 seeds)"
    assert task.verdict("accuracy", "hybrid").text == better
    # -0.10, -0.11, -0.09: mean 0.10, half width 4.30265 * 0.01 / sqrt(3)
    worse = "worse than attention by 0.100 recall accuracy (95 % interval 0.075 to 0.125, 3 seeds)"
    assert task.verdict("accuracy", "mamba2").text == worse
    assert task.verdict("accuracy", "window_of_4").text == "not measured: it keeps no state"


def test_means_are_taken_of_what_is_averaged_and_no_mean_of_an_index(tried):
    (task,) = tried.tasks
    assert task.written("accuracy", "attention") == "0.910 ±0.025"
    assert task.written("state_bytes", "hybrid") == "6 KiB"
    assert task.written("unit", "hybrid") == "7, 8, 9"
    assert task.written("accuracy", "window_of_4") == "–"
    row = next(row for row in tried.table if row["arm"] == "hybrid")
    assert row["recall(pairs=8).accuracy"] == pytest.approx(0.96)
    assert "recall(pairs=8).unit" not in row
    assert tried.other_measures == []


def test_the_chart_is_of_quality_against_the_other_figure(tried):
    (option,) = chart_data(tried)["tradeoffs"]["task recall(pairs=8)"]
    # by state: 6, 6, 9 and 14 KiB; hybrid has the least and the most accuracy
    assert {point["arm"]: point["x"] for point in option["points"]} == {name: 1024 * len(name) for name in ACCURACY}
    assert option["front"] == ["hybrid"]
    assert (option["up"], option["more"], option["words"]) == (True, False, "size")
    assert set(figures(tried)) >= {"speed", "task recall(pairs=8)"}


def test_every_form_of_the_report_has_the_task(tried):
    html, text, table = page(tried), markdown(tried), csv_text(tried)
    assert "<h2>Task recall(pairs=8)</h2>" in html
    assert "<p>seen by attention 0</p>" in html
    assert "seen by attention 1" not in html
    assert "<figcaption>recall accuracy (↑ better)</figcaption>" in html
    assert "## Task recall(pairs=8)" in text
    assert "| hybrid | 0.960 ±0.025 | 0.040 ±0.025 | 6 KiB | 7, 8, 9 |" in text
    assert "recall(pairs=8).unit" in table.partition("\n")[0]
    console = Console(file=io.StringIO(), width=100, color_system=None)
    show(tried, console)
    assert "0.960 ±0.025" in console.file.getvalue()


def test_a_comparison_without_tasks_has_no_such_section(made_up):
    results = Results(*made_up())
    assert results.tasks == []
    assert "Task" not in page(results)
