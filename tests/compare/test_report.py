import csv
import dataclasses
import io
import json
import math
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from bakeoff.compare.report import write
from bakeoff.compare.report.charts import chart_data, curve, pareto
from bakeoff.compare.report.html import SCRIPTS, page
from bakeoff.compare.report.markdown import markdown
from bakeoff.compare.report.markup import Html, element, embedded, join
from bakeoff.compare.report.recipes import ABSENT, differing, flat
from bakeoff.compare.report.verdicts import Scale
from bakeoff.compare.results import Results
from bakeoff.compare.tuning import at_edge, choose, search
from bakeoff.interfaces.page import Page

NASTY = "<script>alert(1)</script>\"'&|`"


class Reader(HTMLParser):
    """Checks that tags close in order; collects ids, links and text."""

    VOID = ("meta", "input", "br", "wbr")

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[key] for key in ("src", "href") if key in found]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def test_active_parameters_are_shown_where_some_are_idle(made_up):
    plan, trials = made_up()
    for arm in plan["arms"]:
        arm["active_parameters"] = arm["parameters"]
    assert "active parameters" not in markdown(Results(plan, trials)) + page(Results(plan, trials))
    plan["arms"][1]["active_parameters"] = 654_321
    for text in (markdown(Results(plan, trials)), page(Results(plan, trials))):
        assert "active parameters" in text
        assert "654k" in text


def test_page_is_whole_small_and_needs_no_network(made_up):
    text = page(Results(*made_up()))
    reader = read(text)
    assert len(text) < 200_000
    assert [link for link in reader.links if not link.startswith("#")] == []
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|//cdn", text)
    assert reader.tags.count("h1") == 1
    for heading in ("Verdict", "Table", "Learning curves", "What quality costs", "What differs", "Search",
                    "How the numbers were made", "Trials", "Environment", "Repeat it"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in text
    assert "bakeoff compare recipes/made_up.yaml" in text


def test_nothing_that_a_user_names_becomes_markup(made_up):
    plan, trials = made_up({NASTY: 2.0, "b": 2.1}, tuned=False)
    trials = [dataclasses.replace(t, state="failed", result=None, reason=NASTY) if t.seed == 2 else t for t in trials]
    plan |= {"name": NASTY, "command": NASTY, "notes": [NASTY]}
    plan["arms"][1]["refused"] = NASTY
    plan["arms"][1]["tree"]["model"][NASTY] = NASTY
    results = Results(plan, trials)
    text = page(results)
    assert "<script>alert" not in text
    assert data_of(text)["arms"] == [NASTY, "b"]
    assert read(text).tags.count("script") == len(SCRIPTS) + 1
    assert [line for line in markdown(results).splitlines() if "<script>" in line] == [f"    {NASTY}"]
    for line in markdown(results).splitlines():
        assert not line.startswith("|") or len(re.findall(r"(?<!\\)\|", line)) == 10


def test_the_kernels_of_all_trials_are_facts(made_up):
    plan, trials = made_up()
    for trial in trials[:2]:
        trial.result["kernels"] = {"gla": "torch (no GPU)"}
    trials[2].result["kernels"] = {"gla": "kernels (fla)", "mamba2": "torch (asked for)"}
    text = page(Results(plan, trials))
    assert "<dt>kernels: gla</dt><dd>torch (no GPU); kernels (fla)</dd>" in text
    assert "<dt>kernels: mamba2</dt><dd>torch (asked for)</dd>" in text


def test_element_escapes_all_but_markup():
    assert element("p", "a<b", Html("<i>c</i>"), class_='x"y', hidden=True, data_n=3, title=None) == (
        '<p class="x&quot;y" hidden data-n="3">a&lt;b<i>c</i></p>'
    )
    assert join("<", Html("<br>")) == "&lt;<br>"
    assert "</script" not in embedded(["</script>"], "x")[:-9]


def test_failures_show_their_reasons_only_where_there_are_some(made_up):
    plan, trials = made_up()
    assert "<h2>Failures</h2>" not in page(Results(plan, trials))
    trials[0] = dataclasses.replace(trials[0], state="failed", result=None, reason="out of memory")
    text = page(Results(plan, trials))
    assert "<h2>Failures</h2>" in text
    assert "out of memory" in text


def test_a_comparison_without_any_result_still_has_a_page(made_up):
    plan, _ = made_up()
    text = page(Results(plan | {"trials": []}, []))
    assert "not run yet" in text
    assert "<h2>Learning curves</h2>" not in text


def test_files_are_written_beside_each_other(made_up, tmp_path):
    results = Results(*made_up())
    assert write(results, tmp_path) == tmp_path / "report.html"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert len(rows) == len(results.trials) == 25
    assert (
        float(rows[0]["validation.bits_per_byte"]) == results.trials[0].result["measures"]["validation.bits_per_byte"]
    )
    assert {row["stage"] for row in rows} == {"run", "tune"}
    text = (tmp_path / "report.md").read_text()
    assert "better than attention by" in text
    assert "## Repeat it" in text


def test_pareto_front_by_hand():
    # less is better in both: (1, 5) and (2, 3) and (4, 1) are beaten by none; (3, 3) by (2, 3); (5, 1) by (4, 1)
    assert pareto([(1, 5), (3, 3), (2, 3), (5, 1), (4, 1)]) == [0, 2, 4]
    assert pareto([(1, 1), (1, 2), (2, 1)]) == [0]
    assert pareto([(1, 1), (1, 1)]) == [0, 1]
    assert pareto([]) == []


def test_front_is_towards_more_speed_and_less_memory(made_up):
    charts = chart_data(Results(*made_up()))["tradeoffs"]
    speed, memory = charts["speed"][0], charts["memory"][0]
    assert speed["front"] == ["attention", "mamba2", "hybrid"]  # fastest first; the others are slower and worse
    assert memory["front"] == ["attention", "mamba2", "hybrid"]


def test_curves_are_means_and_ranges_over_the_steps_that_all_seeds_have(made_up):
    results = Results(*made_up({"a": 2.0, "b": 2.0}, seeds=(0, 1)))
    first, second = (t.result for t in results.arms[0].trials)
    first["curve"] = [{"step": s, "tokens": s, "flops": s, "seconds": 1.0 * s, "loss": float(s)} for s in (1, 2, 3, 4)]
    second["curve"] = [{"step": s, "tokens": s, "flops": s, "seconds": 3.0 * s, "loss": 3.0 * s} for s in (1, 2, 4)]
    (one, two, four) = curve(results.arms[0], "loss", 1)
    assert one == {"step": 1, "tokens": 1, "flops": 1, "seconds": 2, "mean": 2, "low": 1, "high": 3}
    assert (two["mean"], four["step"], four["seconds"]) == (4, 4, 8)
    (pair, _) = curve(results.arms[0], "loss", 2)
    assert (pair["step"], pair["low"], pair["high"], pair["mean"]) == (2, 1.5, 4.5, 3.0)
    assert curve(results.arms[0], "bits_per_byte", 1) == []
    first["curve"] = [p | {"flops": None, "loss": math.inf if p["step"] == 2 else 1.0} for p in first["curve"]]
    assert [(p["step"], "flops" in p) for p in curve(results.arms[0], "loss", 1)] == [(1, False), (4, False)]


def test_what_differs_lists_paths_once_and_marks_what_is_absent():
    trees = {
        "a": {"model": {"d": 1, "mixer": {"use": "x", "window": None}}, "seed": 1},
        "b": {"model": {"d": 1, "mixer": {"use": "y", "state": [1, 2]}}, "seed": 2},
    }
    assert differing(trees) == {
        "model.mixer.use": {"a": "x", "b": "y"},
        "model.mixer.state": {"a": ABSENT, "b": [1, 2]},
        "model.mixer.window": {"a": None, "b": ABSENT},
    }
    assert differing({"a": trees["a"], "b": trees["a"]}) == {}
    assert differing({"a": {"x": {"f": 1}}, "b": {"x": {"f": True}}}) == {"x.f": {"a": 1, "b": True}}
    said = {"a": {"mixer": {"use": "x"}}, "b": {"mixer": {"use": "x", "window": 4}}}
    full = {"a": {"mixer": {"use": "x", "window": None, "bias": False}}, "b": {"mixer": {"use": "x", "window": 4}}}
    assert differing(said, full) == {"mixer.window": {"a": None, "b": 4}}
    assert flat({"p": [{"q": 1}, 2], "e": {}}) == {"p.0.q": 1, "p.1": 2, "e": {}}


def test_search_chooses_the_least_and_warns_at_the_edge(made_up):
    results = Results(*made_up())
    assert set(search(results, "mamba2")) == {"lr 0.001", "lr 0.003"}
    assert choose(results, "mamba2") == {"optimizer.lr": 1e-3}
    (line,) = at_edge(results)
    assert "are best at optimizer.lr 0.001, the least value tried" in line
    plan, trials = made_up()
    plan["tuning"]["grid"]["optimizer.lr"] = [1e-4, 1e-3, 3e-3]
    assert at_edge(Results(plan, trials)) == []


def test_scale_holds_zero_and_its_ticks_are_round():
    scale = Scale(-0.08, 0.29)
    assert scale.ticks() == pytest.approx([-0.1, 0.0, 0.1, 0.2, 0.3])
    assert 0 < float(scale.percent(0.0)[:-1]) < 100
    assert not Scale(0.0, 0.0).known


class Extra(Page):
    """A page of a plugin."""

    title = "Extra"

    def html(self, comparison):
        return f"<p>{len(comparison.arms)} arms</p>"


class Broken(Extra):
    """One that raises."""

    def html(self, comparison):
        raise ZeroDivisionError("division by zero")


def test_pages_of_plugins_are_appended_and_a_broken_one_says_so(made_up, monkeypatch):
    from bakeoff import register
    from bakeoff.registry import _registered

    register("extra_page")(Extra)
    register("broken_page")(Broken)
    try:
        text = page(Results(*made_up()))
    finally:
        del _registered["extra_page"], _registered["broken_page"]
    assert "<h2>Extra</h2><p>5 arms</p>" in text
    assert "&#x27;broken_page&#x27; could not be made: ZeroDivisionError: division by zero" in text


def colours():
    """Custom properties of the light and the dark scheme."""
    css = files("bakeoff.compare.report").joinpath("page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", css, re.S)[:2]
    first = dict(re.findall(r"--([\w-]+): (#\w+)", light))
    return {"light": first, "dark": first | dict(re.findall(r"--([\w-]+): (#\w+)", dark))}


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, two):
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_to_read(scheme):
    # WCAG 2: 4.5 for text, 3 for marks
    c = colours()[scheme]
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    for paper in ("paper", "card", "hover"):
        for ink in ("ink", "muted", "accent"):
            assert contrast(c[ink], c[paper]) >= 4.5, (ink, paper)
    for kind in ("better", "worse", "open", "plain"):
        assert contrast(c[kind], c[f"{kind}-back"]) >= 4.5, kind
    for i in range(8):
        assert contrast(c[f"c{i}"], c["card"]) >= 3.0, i
