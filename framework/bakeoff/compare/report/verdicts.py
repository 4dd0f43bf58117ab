"""The page's first section: what may be said, and the paired differences drawn on one scale."""

from __future__ import annotations

import math

from bakeoff.compare.report.grids import note, section
from bakeoff.compare.report.headline import headline
from bakeoff.compare.report.marks import mark, paint, swatch
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.results import Arm, Results
from bakeoff.compare.table import caveats
from bakeoff.compare.verdict import Verdict
from bakeoff.compare.words import decimals, signed

#: What stands on the badge of each kind of verdict.
BADGES = {
    "baseline": "baseline",
    "better": "better",
    "worse": "worse",
    "none shown": "no difference shown",
    "one seed": "one seed",
    "no pair": "no pair",
    "other text": "not compared",
    "refused": "refused",
    "failed": "failed",
    "waiting": "not run yet",
}


def verdict_section(results: Results) -> Html:
    """The outcome in words; one line an arm, the best mean first; and what limits the reading."""
    scale = Scale.of(results)
    rows = [_row(results, arm, scale) for arm in _ordered(results)]
    axis = _axis(results, scale) if scale.known else Html()
    text = (
        f"Lines are 95 % intervals of the paired difference to {results.baseline.name}, the filled mark is its mean, "
        "rings are single seeds. Arms stand by their mean, after the baseline."
    )
    how = note(text) if scale.known else Html()
    drawn = element("div", *rows, axis, class_="verdicts")
    return section("Verdict", _headline(results), drawn, how, _caveats(results), id_="verdict")


def _headline(results: Results) -> Html:
    first, rest = headline(results)
    return element("p", element("strong", first), f" {rest}" if rest else "", class_="headline")


def _ordered(results: Results) -> list[Arm]:
    """The baseline, the others by their mean, those without a difference last."""

    def place(arm: Arm) -> tuple[bool, float]:
        difference = results.differences.get(arm.name)
        return arm is not results.baseline, difference.mean if difference else math.inf

    return sorted(results.arms, key=place)


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
        return round_ticks(self.low, self.high)


def round_ticks(low: float, high: float) -> list[float]:
    """Three to seven round values within the range."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def tick_digits(ticks: list[float]) -> int:
    """Decimals that tell neighbouring ticks apart."""
    return max(0, -math.floor(math.log10(abs(ticks[1] - ticks[0])))) if len(ticks) > 1 else 3


def _row(results: Results, arm: Arm, scale: Scale) -> Html:
    verdict = results.verdicts[arm.name]
    return element(
        "div",
        element("div", swatch(results.arms.index(arm)), element("strong", arm.name), class_="name"),
        badge(verdict),
        _interval(results, arm, scale),
        element("p", sentence(verdict)),
        class_="verdict",
    )


def badge(verdict: Verdict) -> Html:
    """The kind of a verdict."""
    return element("span", BADGES[verdict.kind], class_="badge", data_kind=verdict.kind.replace(" ", "-"))


def sentence(verdict: Verdict) -> str:
    """The verdict's words without the label that its badge shows already."""
    stripped = verdict.text.removeprefix(f"{BADGES[verdict.kind]}: ")
    return stripped[:1].upper() + stripped[1:]


def _interval(results: Results, arm: Arm, scale: Scale) -> Html:
    if not scale.known:
        return Html()
    zero = _line("zero", scale.percent(0.0), scale.percent(0.0), "0", "100%")
    difference = results.differences.get(arm.name)
    if difference is None:
        return element("svg", zero, class_="interval", aria_hidden="true")
    digits = decimals(difference.half)
    label = f"difference {signed(difference.mean, digits)}"
    index = results.arms.index(arm)
    drawn = [zero]
    if difference.interval:
        low, high = difference.interval
        drawn.append(_bar(index, scale.percent(low), scale.percent(high)))
        label += f", interval {signed(low, digits)} to {signed(high, digits)}"
    drawn += [_ring(index, scale.percent(value)) for value in results.by_seed(arm.name).values()]
    drawn.append(mark(index, x=scale.percent(difference.mean), y="50%"))
    return element("svg", *drawn, class_="interval", role="img", aria_label=label)


def _bar(index: int, low: str, high: str) -> Html:
    """An interval with its ends, that stay in sight where the mark is wider."""
    ends = ((low, high, "50%", "50%"), (low, low, "36%", "64%"), (high, high, "36%", "64%"))
    return join(*(_line("bar", x1, x2, y1, y2, **paint(index)) for x1, x2, y1, y2 in ends))


def _line(class_: str, x1: str, x2: str, y1: str, y2: str, **painted: int) -> Html:
    return element("line", class_=class_, x1=x1, x2=x2, y1=y1, y2=y2, **painted)


def _ring(index: int, x: str) -> Html:
    return element("circle", class_="seed", cx=x, cy="50%", r=3, **paint(index))


def _axis(results: Results, scale: Scale) -> Html:
    ticks = scale.ticks()
    digits = tick_digits(ticks)
    marks = [element("text", signed(tick, digits) if tick else "0", x=scale.percent(tick), y=12) for tick in ticks]
    ends = [element("span", words) for words in (f"← better than {results.baseline.name}", "worse →")]
    unit = element("span", f"difference in {results.metric.unit}", class_="unit")
    return element(
        "div",
        element("svg", *marks, class_="scale", aria_hidden="true"),
        element("p", *ends, unit, class_="legend"),
        class_="axis",
    )


def _caveats(results: Results) -> Html:
    lines = caveats(results)
    return element("ul", *(element("li", line) for line in lines), class_="caveats") if lines else join()
