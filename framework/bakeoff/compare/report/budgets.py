"""Page of what more answers, or a wider search, bring each arm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import ClassVar

from bakeoff.compare.report.grids import note
from bakeoff.compare.report.lines import lines
from bakeoff.compare.report.long_context import each_asked
from bakeoff.compare.report.marks import dashes, mark, sample
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.report.retrieval import not_tried
from bakeoff.compare.results import Results
from bakeoff.compare.tried import Tried
from bakeoff.interfaces.page import Page
from bakeoff.parts.curve_html import Line, curve_html

TOKENS = "tokens drawn for a dialogue"


class BudgetCurves(Page):
    """What tasks `best_of_n` and `step_beam` found, of all arms side by side: accuracy against how many answers are
    drawn, or beams kept, and against the tokens that it takes, with intervals over seeds.

    Of each trial it draws `ways`, name -> points, a point being a size (`size` says of what), tokens and accuracy.
    """

    title = "Scaling at inference"
    tasks: ClassVar = ("best_of_n", "step_beam")

    def html(self, comparison: Results) -> str:
        """Of the arms that were tried; nothing where none was."""
        return join(*(each_asked(comparison, task, _asked) for task in self.tasks))


def _asked(results: Results, task: Tried) -> Html:
    names = [arm.name for arm in results.arms]
    first = next(iter(task.drawn.values()))[0]
    keys = [element("span", sample(names.index(name)), name) for name in names if name in task.drawn]
    charts = [chart for way in first["ways"] for chart in _charts(task, names, way, first["size"])]
    text = (
        "Means over seeds; bands are 95 % intervals over seeds, cut at 0 and 1. Arms that draw as many answers may "
        "draw more tokens or fewer, so that on the right they stand elsewhere. The vertical axes do not start at zero."
    )
    return join(
        element("p", *keys, class_="arms"),
        element("div", *charts, class_="pair"),
        note(text),
        *not_tried(results, task),
        *_trials(task),
    )


def _charts(task: Tried, names: Items[str], way: str, size: str) -> Iterator[Html]:
    """All arms in one way of choosing, against size and against tokens."""
    by_size = list(lines(task, names, lambda one: [(point[0], point[2]) for point in one["ways"][way]], shares=True))
    title = f"accuracy, {way.replace('_', ' ')}"
    yield _chart(by_size, size, title)
    yield _chart([_against_tokens(line, task, way) for line in by_size], TOKENS, title)


def _against_tokens(line: Line, task: Tried, way: str) -> Line:
    """The same points, at the mean over seeds of what they cost."""
    seeds = [[point[1] for point in one["ways"][way]] for one in task.drawn[line.name]]
    costs = [math.fsum(each) / len(each) for each in zip(*seeds, strict=True)]
    return line._replace(points=[(cost, y) for cost, (_, y) in zip(costs, line.points, strict=True)])


def _chart(drawn: Items[Line], x_label: str, y_label: str) -> Html:
    def end(line: Line, x: str, y: str) -> Html:
        return mark(line.number, x=x, y=y)

    return element("div", Html(curve_html(drawn, x_label, y_label, end=end, dashes=dashes)), class_="chart")


def _trials(task: Tried) -> Iterator[Html]:
    """What each arm's first seed shows, closed."""
    for piece in task.shown:
        yield element("details", element("summary", f"{piece.arm}, seed {piece.seed}"), Html(piece.html))
