"""Page of how far arms carry what they have learnt."""

from __future__ import annotations

from typing import ClassVar

from bakeoff.compare.report.grids import note
from bakeoff.compare.report.lines import lines
from bakeoff.compare.report.long_context import each_asked
from bakeoff.compare.report.marks import dashes, mark, sample
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.results import Results
from bakeoff.compare.tried import Tried
from bakeoff.interfaces.page import Page
from bakeoff.parts.curve_html import Line, curve_html

TASK = "length_generalisation"


class LengthCurves(Page):
    """The curves of task `length_generalisation`, of all arms in one chart."""

    title = "Length generalisation"
    tasks: ClassVar = (TASK,)

    def html(self, comparison: Results) -> str:
        """Of the arms that were tried; nothing where none was."""
        return each_asked(comparison, TASK, _curves)


def _curves(results: Results, task: Tried) -> Html:
    names = [arm.name for arm in results.arms]
    keys = [element("span", sample(names.index(name)), name) for name in names if name in task.drawn]
    drawn = list(lines(task, names, lambda one: [(length, share) for length, share, *_ in one["curve"]], shares=True))
    ranges = [one["trained"] for found in task.drawn.values() for one in found]
    longest = {high for _, high in ranges}
    rule = (longest.pop(), "longest trained") if len(longest) == 1 else None

    def end(line: Line, x: str, y: str) -> Html:
        return mark(line.number, x=x, y=y)

    chart = curve_html(drawn, "length of the exercise", "share answered rightly", rule, end, dashes)
    text = (
        "Share of the exercises of each length that are answered rightly, by the likeliest token; means over seeds; "
        "bands are 95 % intervals over seeds, cut at 0 and 1. The vertical axis does not start at zero."
    )
    return join(element("p", *keys, class_="arms"), element("div", Html(chart), class_="chart"), note(text))
