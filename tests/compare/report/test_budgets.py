"""The page of scaling at inference: the arms' curves together, against answers and against tokens."""

import re

import pytest
from bakeoff.compare.report.budgets import BudgetCurves
from bakeoff.compare.report.html import page
from bakeoff.compare.results import Results
from bakeoff.parts.curve_html import Line, curve_html, curve_style

LABELS = {"best_of_n": "best_of_n(judge=exact_match)", "step_beam": "step_beam"}
ARMS = ("sliding_window", "mamba2", "hybrid")
TITLE = "Scaling at inference"


def points(arm, seed, most):
    """Accuracy 0.2, 0.3, 0.4, and 0.01 more on each seed; 10 tokens an answer, an arm's number more."""
    sizes = [n for n in (1, 2, 4) if n <= most]
    accuracy = [0.2 + 0.1 * i + 0.01 * seed for i in range(len(sizes))]
    return [[n, n * (10.0 + arm), value, value - 0.05, value + 0.05] for n, value in zip(sizes, accuracy, strict=True)]


def told(task, arm, seed):
    if task == "step_beam":
        return {"dialogues": 50, "size": "beams", "ways": {"step_beam": points(arm, seed, 4)}}
    return {"dialogues": 50, "size": "answers", "ways": {w: points(arm, seed, 4) for w in ("best_of_n", "majority")}}


def html_of(task, arm):
    return curve_style() + curve_html([Line(f"{arm}", [(1, 0.2), (2, 0.3)], 0)], "answers", task)


@pytest.fixture
def tried(made_up):
    """Three of five arms; the others said why not."""
    plan, trials = made_up(tuned=False)
    figure = {"better": "more", "unit": "share", "against": None}
    plan["tasks"] = {label: {"accuracy": figure} for label in LABELS.values()}
    for trial in trials:
        for task, label in LABELS.items():
            if trial.arm in ARMS:
                arm = ARMS.index(trial.arm)
                trial.result.setdefault("drawn", {})[label] = told(task, arm, trial.seed)
                trial.result.setdefault("shown", {})[label] = html_of(task, arm)
                trial.result["measures"][f"{label}.accuracy"] = 0.4 + 0.01 * trial.seed
            elif trial.result:
                trial.result["unmeasured"][label] = "the recipe has no data.template"
    return Results(plan, trials)


def section(html, title):
    """The text of a section."""
    (found,) = [part for part in html.split("<section")[1:] if f"<h2>{title}</h2>" in part]
    return found.partition("</section>")[0]


def test_there_is_no_page_where_no_arm_was_tried(made_up):
    results = Results(*made_up())
    assert BudgetCurves().html(results) == ""
    assert f"<h2>{TITLE}</h2>" not in page(results)


def test_all_arms_stand_in_each_chart(tried):
    html = section(page(tried), TITLE).split("<details")[0]
    captions = re.findall("<figcaption>(.*?)</figcaption>", html)
    assert captions == ["accuracy, best of n"] * 2 + ["accuracy, majority"] * 2
    whole = section(page(tried), TITLE)
    assert whole.count("<figcaption>accuracy, step beam</figcaption>") == 2
    charts = html.split("<figure")[1:]
    assert [chart.count('class="line"') for chart in charts] == [3] * 4
    assert [chart.count('class="band"') for chart in charts] == [3] * 4
    assert 'aria-label="accuracy, best of n against answers"' in charts[0]
    assert 'aria-label="accuracy, best of n against tokens drawn for a dialogue"' in charts[1]


def test_points_are_means_over_seeds(tried):
    by_size, by_tokens = section(page(tried), TITLE).split("<figure")[1:3]
    paths = [re.findall(r'class="line" d="M(.*?)"', chart) for chart in (by_size, by_tokens)]
    places = [[[float(n) for n in point.split()] for path in chart for point in path.split("L")] for chart in paths]
    # arms agree in accuracy at as many answers, and take 10, 11 and 12 tokens for each
    assert places[0][:3] == places[0][3:6] == places[0][6:]
    assert [y for _, y in places[0]] == [y for _, y in places[1]]
    assert places[1][0][0] < places[1][3][0] < places[1][6][0]


def test_what_trials_show_stands_here_and_only_here(tried):
    html = page(tried)
    assert html.count(html_of("best_of_n", 2)) == 1
    assert f"under “{TITLE}”" in section(html, f"Task {LABELS['best_of_n']}")
    text = "Not tried: attention, window_of_4 (the recipe has no data.template)."
    assert section(html, TITLE).count(text) == 2


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_can_be_read_in_a_browser(tried, show, width, dark):
    tab = show(tried, width=width, dark=dark)
    tab.evaluate("probe.all('details').forEach((d) => { d.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("probe.overlaps()") == []
    assert tab.evaluate("probe.clipped()") == []
    assert tab.evaluate("probe.textContrast().least[0]") >= 4.5
    assert tab.evaluate("probe.markContrast().least[0]") >= 3.0
    assert tab.evaluate(f"document.body.innerText.includes('{TITLE}')")
