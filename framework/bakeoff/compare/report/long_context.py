"""Pages of what models do with long contexts: grids of needles and of keys, and loss against position."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any, ClassVar

from bakeoff.compare.report.grids import grid, note
from bakeoff.compare.report.marks import dashes, mark, sample, swatch
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.results import Results
from bakeoff.compare.tried import Tried
from bakeoff.evaluate.tasks.cells import Cells, cells_html, cells_style, mean_of
from bakeoff.evaluate.tasks.loss_by_position import X_LABEL, Y_LABEL, written
from bakeoff.evaluate.tasks.power_law import PowerLaw
from bakeoff.interfaces.page import Page
from bakeoff.parts.curve_html import Line, curve_html


def each_asked(results: Results, task: str, show: Callable[[Results, Tried], Html]) -> Html:
    """What `show` makes of every time that a task was asked, under its label where those are several."""
    asked = [one for one in results.tasks if one.name == task and one.drawn]
    return join(*(join(element("h3", one.label) if len(asked) > 1 else "", show(results, one)) for one in asked))


def _grids(text: str) -> Callable[[Results, Tried], Html]:
    """The grids of all arms side by side, with `text` to them."""

    def show(results: Results, task: Tried) -> Html:
        drawn = [
            Html(cells_html(mean_of([Cells(**one["cells"]) for one in task.drawn[arm.name]]), arm.name))
            for arm in results.arms
            if arm.name in task.drawn
        ]
        return join(Html(cells_style()), element("div", *drawn, class_="beside-grids"), note(text))

    return show


class NeedleGrids(Page):
    """The grids of task `needle`, of all arms side by side."""

    title = "Needles in a haystack"
    tasks: ClassVar = ("needle",)

    def html(self, comparison: Results) -> str:
        """Of the arms that were tried; nothing where none was."""
        text = (
            "Percentage of numbers that were written digit by digit, by the length of the context in tokens and by the "
            "depth at which the needle stands, 0 % at the beginning; means over seeds."
        )
        return each_asked(comparison, "needle", _grids(text))


class KeyValueGrids(Page):
    """The grids of task `key_value`, of all arms side by side."""

    title = "Keys and values at depth"
    tasks: ClassVar = ("key_value",)

    def html(self, comparison: Results) -> str:
        """Of the arms that were tried; nothing where none was."""
        text = (
            "Percentage of keys that were answered with their value by a small model of the arm's mixers, by the "
            "length of the context in tokens and by the depth at which the pair stands, 0 % at the beginning; means "
            "over seeds."
        )
        return each_asked(comparison, "key_value", _grids(text))


class LossCurves(Page):
    """The curves of task `loss_by_position`, all arms in one chart for each length, and their power laws."""

    title = "Loss against position"
    tasks: ClassVar = ("loss_by_position",)

    def html(self, comparison: Results) -> str:
        """Of the arms that were tried; nothing where none was."""
        return each_asked(comparison, "loss_by_position", _curves)


def _curves(results: Results, task: Tried) -> Html:
    names = [arm.name for arm in results.arms]
    tried = [name for name in names if name in task.drawn]
    first = task.drawn[tried[0]][0]
    keys = [element("span", sample(names.index(name)), name) for name in tried]
    charts = [_chart(task, names, multiple, first["length"]) for multiple in first["curves"]]
    text = (
        "Means over seeds, in four bins for each doubling of the context. Dotted: the power law fitted to the curve at "
        "the training length, of the first seed. The vertical axis does not start at zero."
    )
    return join(
        element("p", *keys, class_="arms"),
        element("div", *charts, class_="pair" if len(charts) > 1 else None),
        note(text),
        _laws(results, task, list(first["means"])),
    )


def _chart(task: Tried, names: Items[str], multiple: str, length: int) -> Html:
    """All arms at one multiple of the training length."""
    lines = []
    for name, drawn in task.drawn.items():
        number = names.index(name)
        curves = [one["curves"][multiple] for one in drawn]
        lines.append(Line(name, _mean(curves), number))
        if multiple == "1":
            law = PowerLaw(**drawn[0]["law"])
            lines.append(Line(name, [(t, law.at(t)) for t, *_ in curves[0]], number, dotted=True))
    label = f"{Y_LABEL}, rows of {int(multiple) * length:,} tokens, {multiple}x the training length"
    rule = (length, "training length")

    def end(line: Line, x: str, y: str) -> Html:
        return mark(line.number, x=x, y=y)

    return element("div", Html(curve_html(lines, X_LABEL, label, rule, end, dashes)), class_="chart")


def _mean(curves: Items[Items[Items[float]]]) -> list[tuple[float, float]]:
    """Over seeds, at the places that all have."""
    seeds = [{t: loss for t, loss, _ in curve} for curve in curves]
    shared = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return [(t, math.fsum(seed[t] for seed in seeds) / len(seeds)) for t in shared]


def _laws(results: Results, task: Tried, multiples: Items[str]) -> Html:
    """A row an arm: its mean loss at each length, and its law on each seed."""
    rows: list[Items[str]] = []
    for index, arm in enumerate(results.arms):
        drawn: list[dict[str, Any]] = task.drawn.get(arm.name, [])
        if drawn:
            means = [math.fsum(one["means"][m] for one in drawn) / len(drawn) for m in multiples]
            laws = [element("div", Html(written(PowerLaw(**one["law"])))) for one in drawn]
            cells = [*(f"{mean:.3f}" for mean in means), element("td", *laws)]
            rows.append([join(swatch(index), arm.name), *cells])
    head = ["arm", *(f"nats at {m}x" for m in multiples), "power law"]
    text = (
        "Mean loss in rows of each length, and the power law of each seed; ± is the root mean square distance of the "
        "curve from it."
    )
    return join(grid("Loss by length, and power laws", head, rows), note(text))
