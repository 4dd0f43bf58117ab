"""The page's first section: what may be said, and the paired differences drawn on one scale."""

from __future__ import annotations

import math

from bakeoff.compare.report.grids import note, section
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.results import Arm, Results
from bakeoff.compare.table import caveats
from bakeoff.compare.words import decimals, signed

#: What stands on the badge of each kind of verdict.
BADGES = {
    "baseline": "baseline",
    "better": "better",
    "worse": "worse",
    "none shown": "no difference shown",
    "one seed": "one seed",
    "no pair": "no pair",
    "refused": "refused",
    "failed": "failed",
    "waiting": "not run yet",
}


def verdict_section(results: Results) -> Html:
    """One line an arm: name, badge, interval on a common scale, sentence; and what limits the reading."""
    scale = Scale.of(results)
    rows = [_row(results, arm, scale) for arm in results.arms]
    axis = _axis(results, scale) if scale.known else Html()
    text = "Lines are 95 % intervals of the paired difference; the large dot is its mean, small ones are single seeds."
    how = note(text) if scale.known else Html()
    return section("Verdict", element("div", *rows, axis, class_="verdicts"), how, _caveats(results), id_="verdict")


class Scale:
    """Maps a difference in the metric to percent of the plot's width; zero is always in it."""

    def __init__(self, low: float, high: float):
        margin = 0.06 * (high - low) or 1.0
        self.low, self.high = low - margin, high + margin
        self.known = high > low

    @classmethod
    def of(cls, results: Results) -> Scale:
        """The scale that holds every interval and every seed."""
        ends = [0.0]
        for name, difference in results.differences.items():
            ends += [*results.by_seed(name).values(), *((difference and difference.interval) or ())]
        return cls(min(ends), max(ends))

    def percent(self, value: float) -> str:
        """Where a value stands."""
        return f"{100 * (value - self.low) / (self.high - self.low):.2f}%"

    def ticks(self) -> list[float]:
        """Round values, three to seven of them, zero included."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        return [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def _row(results: Results, arm: Arm, scale: Scale) -> Html:
    verdict = results.verdicts[arm.name]
    return element(
        "div",
        element("div", swatch(results, arm.name), element("strong", arm.name), class_="name"),
        badge(results, arm.name),
        _interval(results, arm, scale),
        element("p", sentence(verdict.text, BADGES[verdict.kind])),
        class_="verdict",
        data_arm=results.arms.index(arm),
    )


def badge(results: Results, name: str) -> Html:
    """The kind of an arm's verdict."""
    kind = results.verdicts[name].kind
    return element("span", BADGES[kind], class_="badge", data_kind=kind.replace(" ", "-"))


def sentence(text: str, badge: str) -> str:
    """The verdict's words without the label that the badge shows already."""
    stripped = text.removeprefix(f"{badge}: ")
    return stripped[:1].upper() + stripped[1:]


def swatch(results: Results, name: str) -> Html:
    """The arm's mark: the same colour and shape as in the charts."""
    index = [arm.name for arm in results.arms].index(name)
    return element("svg", class_="swatch", viewBox="-8 -8 16 16", aria_hidden="true", data_mark=index, data_arm=index)


def _interval(results: Results, arm: Arm, scale: Scale) -> Html:
    if not scale.known:
        return Html()
    zero = _line("zero", scale.percent(0.0), scale.percent(0.0), "0", "100%")
    difference = results.differences.get(arm.name)
    if difference is None:
        return element("svg", zero, class_="interval", aria_hidden="true")
    digits = decimals(difference.half)
    label = f"difference {signed(difference.mean, digits)}"
    drawn = [zero]
    if difference.interval:
        low, high = difference.interval
        drawn.append(_line("bar", scale.percent(low), scale.percent(high), "50%", "50%"))
        label += f", interval {signed(low, digits)} to {signed(high, digits)}"
    drawn += [_dot("seed", scale.percent(value), 3) for value in results.by_seed(arm.name).values()]
    drawn.append(_dot("dot", scale.percent(difference.mean), 5))
    return element("svg", *drawn, class_="interval", role="img", aria_label=label)


def _line(class_: str, x1: str, x2: str, y1: str, y2: str) -> Html:
    return Html(f'<line class="{class_}" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"></line>')


def _dot(class_: str, x: str, r: int) -> Html:
    return Html(f'<circle class="{class_}" cx="{x}" cy="50%" r="{r}"></circle>')


def _axis(results: Results, scale: Scale) -> Html:
    ticks = scale.ticks()
    digits = max(0, -math.floor(math.log10(abs(ticks[1] - ticks[0])))) if len(ticks) > 1 else 3
    marks = [
        Html(f'<text x="{scale.percent(tick)}" y="12">{signed(tick, digits) if tick else "0"}</text>') for tick in ticks
    ]
    legend = f"← better than {results.baseline.name} · {results.metric.unit} · worse →"
    return element(
        "div",
        element("svg", *marks, class_="scale", aria_hidden="true"),
        element("p", legend, class_="legend"),
        class_="axis",
    )


def _caveats(results: Results) -> Html:
    lines = caveats(results)
    return element("ul", *(element("li", line) for line in lines), class_="caveats") if lines else join()
