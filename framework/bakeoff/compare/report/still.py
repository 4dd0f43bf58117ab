"""The charts as they stand without scripts: drawn in shares of the width, so that they fit any page."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Any

from bakeoff.compare.report.marks import dashes, mark, paint
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.report.verdicts import round_ticks, tick_digits
from bakeoff.compare.words import count, size

#: Share of the budget at the beginning of which the steep part of a curve is left out.
STEEP = 0.12

WORDS = {"count": count, "size": size}


class Span:
    """Maps values to percent of a length, with a margin at both ends."""

    def __init__(self, values: Iterable[float], *, falling: bool = False, margin: float = 0.06):
        known = list(values)
        low, high = min(known), max(known)
        room = margin * (high - low or abs(low) or 1.0)
        self.low, self.high, self.falling = low - room, high + room, falling

    def at(self, value: float) -> float:
        """Where a value stands, 0 to 100."""
        share = 100 * (value - self.low) / (self.high - self.low)
        return round(100 - share if self.falling else share, 1)

    def ticks(self) -> list[float]:
        """Round values on it."""
        return round_ticks(self.low, self.high)


def still_curves(curve: dict[str, Any], arms: Items[str], begin: float = STEEP) -> Html:
    """Means against tokens, from a share of them on, with the band from the lowest to the highest."""
    most = max(points[-1]["tokens"] for points in curve["series"].values())
    settled = {n: [p for p in points if p["tokens"] >= begin * most] for n, points in curve["series"].items()}
    series = {name: points for name, points in settled.items() if points}
    every = [point for points in series.values() for point in points]
    x = Span((point["tokens"] for point in every), margin=0.03)
    y = Span((point[end] for point in every for end in ("low", "high")), falling=True)
    drawn = [_curve(points, x, y, arms.index(name)) for name, points in series.items()]
    lines = element("svg", *drawn, class_="stretched", viewBox="0 0 100 100", preserveAspectRatio="none")
    ends = [
        mark(arms.index(name), x=f"{x.at(points[-1]['tokens'])}%", y=f"{y.at(points[-1]['mean'])}%")
        for name, points in series.items()
    ]
    return _figure([lines, *ends], x, y, "count", "tokens", curve["label"])


def _curve(points: Items[dict[str, float]], x: Span, y: Span, index: int) -> Html:
    path = {key: [f"{x.at(point['tokens'])} {y.at(point[key])}" for point in points] for key in ("mean", "low", "high")}
    band = element("path", d=f"M{'L'.join(path['high'] + path['low'][::-1])}Z", class_="band", **paint(index))
    stroke = {"stroke_dasharray": dashes(index), "vector_effect": "non-scaling-stroke"}
    return join(band, element("path", d=f"M{'L'.join(path['mean'])}", class_="line", **stroke, **paint(index)))


def still_tradeoff(option: dict[str, Any], arms: Items[str]) -> Html:
    """Quality against a cost, a mark an arm, from its lowest to its highest seed."""
    x = Span((point["x"] for point in option["points"]), margin=0.14)
    y = Span((point[end] for point in option["points"] for end in ("low", "high")), falling=True)
    drawn: list[Html] = []
    for point in option["points"]:
        place, index = f"{x.at(point['x'])}%", arms.index(point["arm"])
        ends = {"y1": f"{y.at(point['low'])}%", "y2": f"{y.at(point['high'])}%"}
        drawn.append(element("line", class_="whisker", x1=place, x2=place, **ends, **paint(index)))
        drawn.append(mark(index, x=place, y=f"{y.at(point['y'])}%"))
    better = "more is better →" if option["more"] else "← less is better"
    return _figure(
        drawn,
        x,
        y,
        option["words"],
        f"{option['label']} ({better})",
        f"{option['unit']} ({'↑' if option['up'] else '↓'} better)",
    )


def _figure(drawn: Items[Html], x: Span, y: Span, words: str, x_label: str, y_label: str) -> Html:
    """Axes around what is drawn."""
    ys, xs = y.ticks(), x.ticks()
    digits = tick_digits(ys)
    grid = [element("line", class_="grid", x1="0", x2="100%", y1=f"{y.at(t)}%", y2=f"{y.at(t)}%") for t in ys]
    beside = [element("text", f"{t:.{digits}f}", x="100%", y=f"{y.at(t)}%", dy=4, text_anchor="end") for t in ys]
    below = [element("text", WORDS[words](t), x=f"{x.at(t)}%", y=14, text_anchor="middle") for t in xs if t >= 0]
    return element(
        "figure",
        element("figcaption", y_label),
        element("svg", *beside, class_="beside"),
        element("svg", *grid, *drawn, class_="field", role="img", aria_label=f"{y_label} against {x_label}"),
        element("svg", *below, class_="below"),
        element("p", x_label),
        class_="still plot",
    )
