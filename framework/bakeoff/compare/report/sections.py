"""The page's sections: table, charts, failures, recipes, search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bakeoff.compare.report.charts import chart_data, task_chart
from bakeoff.compare.report.grids import grid, note, scrolling, section, words
from bakeoff.compare.report.marks import sample, swatch
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.report.recipes import ABSENT, differing
from bakeoff.compare.report.still import still_curves, still_tradeoff
from bakeoff.compare.report.verdicts import BADGES, badge, sentence
from bakeoff.compare.results import Results
from bakeoff.compare.table import difference, digits_of, plus_minus
from bakeoff.compare.tried import Tried
from bakeoff.compare.tuning import at_edge, search
from bakeoff.compare.words import count, size

#: Heading, column of the table and how its numbers are written.
COSTS = (
    ("training tokens/s", "tokens_per_second", count),
    ("decoding tokens/s", "decode_tokens_per_second", count),
    ("peak memory", "peak_bytes", size),
    ("parameters", "parameters", count),
    ("active parameters", "active_parameters", count),
    ("without embedding", "parameters_without_embedding", count),
    ("FLOPs / token", "flops_per_token", count),
    ("state per sequence", "state_bytes", size),
)


def table(results: Results) -> Html:
    """All arms with all numbers; each column sorts."""
    measured = [results.metric.unit, "difference to baseline", "verdict"]
    headings = ["arm", *measured, *(heading for heading, _, _ in _costs(results)), *results.other_measures]
    head = [
        element(
            "th",
            element("button", heading, element("span", aria_hidden="true"), type="button"),
            scope="col",
            class_="word" if heading == "verdict" else None,
        )
        for heading in headings
    ]
    body = [_table_row(results, row) for row in results.table]
    drawn = element("table", element("thead", element("tr", *head)), element("tbody", *body), class_="sortable")
    text = (
        f"Means over seeds, ± half the 95 % interval. Less is better in {results.metric.unit}; a difference is paired: "
        "arm minus baseline on the same seed, so that what a seed does to both cancels."
    )
    how = element("p", "Press a heading to sort.", class_="note scripted")
    return section("Table", scrolling(drawn, "Table of arms"), note(text), how)


def _costs(results: Results) -> list[tuple[str, str, Callable[[float | None], str]]]:
    """The costs that some arm has."""
    return [cost for cost in COSTS if any(row[cost[1]] is not None for row in results.table)]


def _table_row(results: Results, row: dict[str, Any]) -> Html:
    column = results.metric.column
    index = [arm.name for arm in results.arms].index(row["arm"])
    rank = list(BADGES).index(results.verdicts[row["arm"]].kind)
    return element(
        "tr",
        element("th", swatch(index), row["arm"], scope="row"),
        _number(plus_minus(row[column], row[f"{column}_half"], 3), row[column]),
        _number(difference(row, digits_of(results)), row["difference"]),
        element("td", badge(results.verdicts[row["arm"]]), class_="word", data_value=rank),
        *(_number(write(row[key]), row[key]) for _, key, write in _costs(results)),
        *(_number("–" if row[key] is None else f"{row[key]:.4g}", row[key]) for key in results.other_measures),
    )


def _number(text: str, value: float | None) -> Html:
    return element("td", text, data_value=value)


def curves(results: Results) -> Html:
    """Learning curves against tokens, FLOPs and seconds."""
    data = chart_data(results)
    if not data["curves"]:
        return join()
    still = still_curves(data["curves"][0], data["arms"])
    text = (
        "Mean over seeds; the band reaches from the lowest to the highest seed. The vertical axis leaves out the steep "
        "beginning and does not start at zero. Time is that of training alone."
    )
    how = "Point at a chart, or focus it and press the arrow keys, to read values. Names above switch arms off and on."
    hint = element("p", how, class_="note scripted")
    return section("Learning curves", toggles(data["arms"]), _chart("curves", still), note(text), hint)


def toggles(arms: list[str]) -> Html:
    """The key to the charts, that switches arms off and on."""
    buttons = [
        element("button", sample(i), name, type="button", aria_pressed="true", data_toggle=i)
        for i, name in enumerate(arms)
    ]
    every = element("button", "Hide all", type="button", class_="scripted", data_toggle_all=True)
    return element("div", *buttons, every, class_="arms", role="group", aria_label="Arms shown in the charts")


def _chart(key: str, still: Html) -> Html:
    """A chart as it stands without scripts, which draw it anew for the width at hand."""
    return element("div", still, class_="chart", data_chart=key)


def tradeoffs(results: Results) -> Html:
    """Quality against speed and against memory, with the Pareto front."""
    data = chart_data(results)
    found = data["tradeoffs"]
    charts = [
        element("div", element("h3", title), _chart(key, still_tradeoff(found[key][0], data["arms"])))
        for key, title in (("speed", "Against speed and work"), ("memory", "Against memory"))
        if found[key]
    ]
    if not charts:
        return join()
    text = (
        f"Lower is better in {results.metric.unit}. The dashed line joins the arms that none beats in both (the "
        "Pareto front of the means); bars reach from the lowest to the highest seed. Neither axis starts at zero."
    )
    if results.judged.apart:
        text += " Arms that are validated on other text are left out."
    pair = element("div", *charts, class_="pair")
    return section("What quality costs", toggles(data["arms"]), pair, note(text))


def tasks(results: Results, elsewhere: Mapping[str, str]) -> Html:
    """What the arms were tried at beyond their own data, a section each; `elsewhere` are the tasks of which another
    section, by its title, shows what the trials show."""
    return join(*(_task(results, task, elsewhere.get(task.name)) for task in results.tasks))


def _task(results: Results, task: Tried, elsewhere: str | None) -> Html:
    """Figures and verdicts, the chart if there is one, and what the trials show."""
    data = chart_data(results)
    options = data["tradeoffs"].get(task_chart(task))
    chart = join()
    if options:
        text = "Bars reach from the lowest to the highest seed; the dashed line joins the arms that none beats in both."
        still = still_tradeoff(options[0], data["arms"])
        chart = join(toggles(data["arms"]), _chart(task_chart(task), still), note(text))
    shown = [
        element("details", element("summary", f"{one.arm}, seed {one.seed}"), Html(one.html), open=i == 0)
        for i, one in enumerate(task.shown)
    ]
    if elsewhere and shown:
        shown = [note(f"What the trials show stands below, under “{elsewhere}”.")]
    text = (
        "Means over seeds, ± half the 95 % interval; differences and verdicts are paired and corrected for the number "
        "of arms, as above, for each figure by itself."
    )
    return section(f"Task {task.label}", _task_grid(results, task), note(text), chart, *shown)


def _task_grid(results: Results, task: Tried) -> Html:
    headings, rows = ["arm"], []
    for name in task.figures:
        headings.append(name.replace("_", " "))
        if name in task.judged:
            headings.append(element("th", "verdict", scope="col", class_="word"))
    for index, arm in enumerate(results.arms):
        cells: list[str] = [join(swatch(index), arm.name)]
        for name in task.figures:
            cells.append(task.written(name, arm.name))
            if name in task.judged:
                verdict = task.verdict(name, arm.name)
                cells.append(element("td", badge(verdict), f" {sentence(verdict)}", class_="word"))
        rows.append(cells)
    return grid(f"Task {task.label}", headings, rows)


def failures(results: Results) -> Html:
    """Trials and arms without a result, with the reason."""
    rows = [
        (arm.name, words("refused before training"), words(arm.facts["refused"]))
        for arm in results.arms
        if arm.facts.get("refused")
    ]
    for trial in results.failures:
        which = f"seed {trial.seed}" + (", search" if trial.stage == "tune" else "")
        rows.append((trial.arm, words(which), words(trial.reason or "")))
    shown = grid("Failures and their reasons", ("arm", "trial", "reason"), rows, "failures")
    return section("Failures", shown, id_="failures") if rows else join()


def recipes(results: Results) -> Html:
    """What differs between the arms' recipes."""
    trees, full = ({arm.name: arm.facts[key] for arm in results.arms} for key in ("tree", "full"))
    found = differing(trees, full)
    if not found:
        return section("What differs", element("p", "The arms' recipes are the same."))
    base = results.baseline.name
    rows = []
    for path, values in found.items():
        same = {name: name != base and repr(value) == repr(values[base]) for name, value in values.items()}
        cells = [element("td", _leaf(value), class_="same" if same[name] else "own") for name, value in values.items()]
        rows.append((breakable(path), *cells))
    text = f"Every setting in which an arm differs from another; what equals {base} is muted. All else is the same."
    names = [arm.name for arm in results.arms]
    return section("What differs", grid("Settings that differ", ("setting", *names), rows, "recipes"), note(text))


def breakable(path: str) -> Html:
    """A dotted path that may break after each dot."""
    first, *rest = path.split(".")
    return join(first, *(join(Html(".<wbr>"), segment) for segment in rest))


def _leaf(value: Any) -> str:
    if value is ABSENT:
        return "–"
    if isinstance(value, list):
        return f"[{', '.join(map(_leaf, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def tuning(results: Results) -> Html:
    """The search that every arm got, and what it chose."""
    if not results.plan.get("tuning"):
        return join()
    found = {arm.name: search(results, arm.name) for arm in results.arms}
    labels = list(dict.fromkeys(label for points in found.values() for label in points))
    rows = []
    for name, values in found.items():
        known = {label: value for label, value in values.items() if value is not None}
        best = min(known, key=known.__getitem__, default=None)
        cells = (
            element("td", plus_minus(values.get(label), None, 4), class_="chosen" if label == best else None)
            for label in labels
        )
        rows.append((name, *cells))
    text = (
        f"{results.metric.unit} on seed {results.plan['tuning']['seed']}, which is none of the reported seeds, so that "
        "choosing the best point flatters no reported number. The chosen point is marked."
    )
    edges = [element("li", line) for line in at_edge(results)]
    warned = element("ul", *edges, class_="caveats") if edges else join()
    return section("Search", grid("Search", ("arm", *labels), rows), note(text[0].upper() + text[1:]), warned)
