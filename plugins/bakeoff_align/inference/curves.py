"""Accuracy against what it costs: numbers with their intervals, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from html import escape

import numpy as np
from bakeoff.parts.curve_html import Line, curve_html, curve_style
from bakeoff.parts.resampling import means

#: Strokes of the ways' lines, one after another.
DASHES = ("none", "8 3", "2 3", "9 3 2 3")


def curve(right: np.ndarray, sizes: Items[int], tokens: np.ndarray) -> list[list[float]]:
    """A point for each size: the size, mean tokens, mean of `right`, and its 95 % interval.

    `right`, `tokens` : (sizes, dialogues); the interval is the bootstrap's over dialogues.
    """
    each = zip(sizes, tokens.mean(1).tolist(), means(right, seed=0), strict=True)
    return [[size, cost, *own] for size, cost, own in each]


def page(told: str, ways: Mapping[str, Items[Items[float]]], size: str) -> str:
    """The curves of each way against `size` (what its sizes are called) and against tokens, and their numbers."""
    charts = [_chart(ways, 0, size), _chart(ways, 1, "tokens drawn for a dialogue, mean")]
    return "".join([curve_style(), f"<p>{escape(told)}</p>", _key(ways), *charts, _table(ways, size)])


def _chart(ways: Mapping[str, Items[Items[float]]], x: int, label: str) -> str:
    lines = []
    for number, (name, points) in enumerate(ways.items()):
        band = [(low, high) for *_, low, high in points]
        lines.append(Line(words(name), [(point[x], point[2]) for point in points], number, band=band))
    return curve_html(lines, label, "accuracy", end=lambda line, x, y: "", dashes=_dashes)


def _key(ways: Iterable[str]) -> str:
    """Which line is which."""
    spans = "".join(
        f'<span><svg viewBox="-15 -8 30 16" style="width: 30px; height: 16px" aria-hidden="true"><path d="M-15 0H15" '
        f'class="line" stroke-dasharray="{_dashes(number)}" data-ink="{number}"/></svg> {escape(words(name))}</span>'
        for number, name in enumerate(ways)
    )
    return f'<p class="curve" style="display: flex; flex-wrap: wrap; gap: 0.25rem 1rem">{spans}</p>'


def _dashes(number: int) -> str:
    return DASHES[number % len(DASHES)]


def words(name: str) -> str:
    """A way of choosing, as it is called."""
    return name.replace("_", " ")


def _table(ways: Mapping[str, Items[Items[float]]], size: str) -> str:
    first = next(iter(ways.values()))
    head = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in (size, "tokens", *map(words, ways)))
    rows = []
    for place, (count, tokens, *_) in enumerate(first):
        cells = "".join(_cell(*points[place][2:5]) for points in ways.values())
        rows.append(f"<tr><th scope=row>{count:g}</th><td>{tokens:.1f}</td>{cells}</tr>")
    label = f"Accuracy by {size}"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll" tabindex=0 role=region aria-label="{escape(label)}">{table}</div>'


def _cell(value: float, low: float, high: float) -> str:
    return f"<td>{value:.3f} <small>({low:.3f} to {high:.3f})</small></td>"
