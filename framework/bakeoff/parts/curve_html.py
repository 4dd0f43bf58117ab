"""Curves over a logarithmic axis, as a figure that stands without scripts and fits any width."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from html import escape
from typing import NamedTuple

#: Powers of two that an axis has at least, to be told by them.
FEWEST = 3
#: Share of the height above the highest and below the lowest value.
MARGIN = 0.08
#: Lines beyond these are told apart by their dashes.
COLOURS = ("#1d4ed8", "#c2410c", "#15803d", "#a21caf", "#0e7490", "#854d0e", "#be123c", "#4d4d4d")
DARK = ("#8ab4ff", "#ff9b54", "#5fd38d", "#e58bf2", "#5fd0e6", "#e0b34d", "#ff8fa3", "#c2c2c2")


class Line(NamedTuple):
    """A curve: its points (x > 0, y), its colour's number, and what the end is called.

    `dotted` ones are fits: they are thin, and have no end. `band` holds a lowest and a highest y of each point, or
    nothing.
    """

    name: str
    points: list[tuple[float, float]]
    number: int
    dotted: bool = False
    band: Items[tuple[float, float]] = ()


def curve_html(
    lines: Items[Line],
    x_label: str,
    y_label: str,
    rule: tuple[float, str] | None = None,
    end: Callable[[Line, str, str], str] | None = None,
    dashes: Callable[[int], str] = lambda number: "none",
) -> str:
    """Lines over powers of two, or over their own points where these span too little for that.

    `rule` is a vertical line with words to it; `end` gives the SVG of a line's end at (x, y), unless it is named.
    """
    every = [point for line in lines for point in line.points]
    low, high = min(x for x, _ in every), max(x for x, _ in every)
    solid = [line for line in lines if not line.dotted]
    ends = [y for line in solid for pair in line.band for y in pair]
    bottom, top = _room([*(y for line in solid for _, y in line.points), *ends])

    def across(x: float) -> float:
        return round(3 + 90 * math.log(x / low) / (math.log(high / low) or 1.0), 2)

    def up(y: float) -> float:
        return round(100 * (top - min(max(y, bottom), top)) / (top - bottom), 2)

    ys, step = _ticks(bottom, top)
    xs = [2**i for i in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    if len(xs) < FEWEST:
        xs = sorted({round(x) for x, _ in every})
    xs = xs[:: math.ceil(len(xs) / 8) or 1]
    grid = "".join(f'<line class="grid" x1="0" x2="100%" y1="{up(y)}%" y2="{up(y)}%"/>' for y in ys)
    beside = "".join(f'<text x="100%" y="{up(y)}%" dy="4" text-anchor="end">{y:.{step}f}</text>' for y in ys)
    below = "".join(f'<text x="{across(x)}%" y="14" text-anchor="middle">{_short(x)}</text>' for x in xs)
    bands = "".join(_band(line, across, up) for line in lines if line.band)
    drawn = bands + "".join(_path(line, across, up, dashes(line.number)) for line in lines)
    marks = "".join(
        (end or _named)(line, f"{across(line.points[-1][0])}%", f"{up(line.points[-1][1])}%")
        for line in lines
        if not line.dotted
    )
    label = f"{y_label} against {x_label}"
    return (
        f'<figure class="still plot curve"><figcaption>{escape(y_label)}</figcaption><svg class="beside">{beside}</svg>'
        f'<svg class="field" role="img" aria-label="{escape(label)}">{grid}{_rule(rule, across, low, high)}'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" class="stretched">{drawn}</svg>{marks}</svg>'
        f'<svg class="below">{below}</svg><p>{escape(x_label)} (logarithmic)</p></figure>'
    )


def curve_style() -> str:
    """The style of `curve_html` where it stands outside a report, once a page; a report has its own."""

    def colours(names: Items[str]) -> str:
        return " ".join(f'.curve [data-ink="{i}"] {{ --c: {colour} }}' for i, colour in enumerate(names))

    return (
        "<style>@layer alone { .curve { display: grid; grid-template-columns: 3.6rem 1fr; gap: 0 0.5rem;"
        " margin: 0 0 1rem; font-size: 12px } .curve figcaption { grid-column: 1 / -1; padding-bottom: 0.7rem }"
        " .curve svg { width: 100%; overflow: visible } .curve text { fill: currentColor; font-size: 12px }"
        " .curve .field, .curve .beside { height: 17rem } .curve .field { border-bottom: 1px solid }"
        " .curve .below { height: 18px; grid-column: 2 } .curve p { grid-column: 2; text-align: center; margin: 0 }"
        " .curve .grid { stroke: currentColor; opacity: 0.15 } .curve .line { fill: none; stroke: var(--c);"
        f" stroke-width: 2 }} .curve .band {{ fill: var(--c); opacity: 0.14 }} {colours(COLOURS)}"
        f" @media screen and (prefers-color-scheme: dark) {{ {colours(DARK)} }} }}</style>"
    )


def _path(line: Line, across: Callable[[float], float], up: Callable[[float], float], dashes: str) -> str:
    points = "L".join(f"{across(x)} {up(y)}" for x, y in line.points)
    stroke = 'stroke-dasharray="1 4" style="stroke-width: 1.5"' if line.dotted else f'stroke-dasharray="{dashes}"'
    ink = f'data-ink="{line.number % len(COLOURS)}"'
    return f'<path class="line" d="M{points}" {stroke} vector-effect="non-scaling-stroke" {ink}/>'


def _band(line: Line, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    """From the highest of each point to its lowest."""
    outline = [
        f"{across(x)} {up(ends[end])}"
        for end, step in ((1, 1), (0, -1))
        for (x, _), ends in list(zip(line.points, line.band, strict=True))[::step]
    ]
    return f'<path class="band" d="M{"L".join(outline)}Z" data-ink="{line.number % len(COLOURS)}"/>'


def _named(line: Line, x: str, y: str) -> str:
    return f'<text x="{x}" y="{y}" dx="6" dy="4">{escape(line.name)}</text>'


def _rule(rule: tuple[float, str] | None, across: Callable[[float], float], low: float, high: float) -> str:
    """Where it lies inside; its words stand to the left of it."""
    if rule is None or not low <= rule[0] < high:
        return ""
    x = f"{across(rule[0])}%"
    return (
        f'<line x1="{x}" x2="{x}" y1="0" y2="100%" stroke="currentColor" stroke-dasharray="2 3"/>'
        f'<text x="{x}" y="14" dx="-6" text-anchor="end">{escape(rule[1])}</text>'
    )


def _room(values: Items[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = MARGIN * (high - low or abs(low) or 1.0)
    return low - room, high + room


def _ticks(low: float, high: float) -> tuple[list[float], int]:
    """Round values inside, and the decimals that they take."""
    rough = (high - low) / 5
    power = math.floor(math.log10(rough))
    step = next(m * 10.0**power for m in (1, 2, 5, 10) if m * 10.0**power >= rough)
    values = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return values, max(0, -math.floor(math.log10(step)))


def _short(x: int) -> str:
    return f"{x // 1024}k" if x >= 1024 and x % 1024 == 0 else str(x)
