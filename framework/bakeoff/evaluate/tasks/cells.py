"""The cells of a grid of context lengths and depths, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from html import escape
from typing import Literal, NamedTuple

from bakeoff.evaluate.tasks.coloured import POSITIVE, SHADES, shade
from bakeoff.parts.counts import check_counts

Spacing = Literal["linear", "sigmoid"]


class Cells(NamedTuple):
    """One number for each depth (rows) and length (columns), and what they are of.

    Attributes
    ----------
    lengths : in tokens. depths : in percent of the context, 0 at its beginning. values : (depths, lengths) shares.
    """

    lengths: list[int]
    depths: list[float]
    values: list[list[float]]

    @property
    def mean(self) -> float:
        every = [value for row in self.values for value in row]
        return math.fsum(every) / len(every)

    @property
    def worst(self) -> float:
        return min(value for row in self.values for value in row)


def spaced(low: float, high: float, n: int) -> list[int]:
    """`n` whole numbers evenly spaced from `low` to `high`, each once; one number alone is `high`."""
    if n == 1:
        return [round(high)]
    return list(dict.fromkeys(round(low + (high - low) * i / (n - 1)) for i in range(n)))


def depths_of(n: int, spacing: Spacing) -> list[float]:
    """`n` depths from 0 to 100 percent.

    Linear ones are whole; sigmoid ones are 100 / (1 + e^(-0.1 (x - 50))) of evenly spaced x, closer together towards
    both ends, which themselves are 0 and 100 (Kamradt, 2023).
    """
    if spacing == "linear":
        return [float(depth) for depth in spaced(0, 100, n)]
    if n == 1:
        return [100.0]
    inner = (100 * i / (n - 1) for i in range(1, n - 1))
    return [0.0, *(round(100 / (1 + math.exp(-0.1 * (x - 50))), 3) for x in inner), 100.0]


def check_grid(*, lengths: int, depths: int, spacing: str, shortest: int, longest: int | None) -> None:
    """Raise `ValueError` where there is no such grid."""
    check_counts(lengths=lengths, depths=depths, shortest=shortest)
    if longest is not None and longest < shortest:
        raise ValueError(f"longest is {longest}, shortest {shortest}; longest must be at least as much")
    if spacing not in ("linear", "sigmoid"):
        raise ValueError(f"spacing is '{spacing}'; it must be linear or sigmoid")


def mean_of(grids: Items[Cells]) -> Cells:
    """Cell by cell, over grids of the same lengths and depths."""
    first = grids[0]
    values = [
        [math.fsum(grid.values[i][j] for grid in grids) / len(grids) for j in range(len(first.lengths))]
        for i in range(len(first.depths))
    ]
    return first._replace(values=values)


def cells_html(cells: Cells, title: str = "") -> str:
    """The grid as a table: each cell says its share in percent, and is the darker the larger that is."""
    head = "".join(f'<th scope="col">{length:,}</th>' for length in cells.lengths)
    rows = "".join(
        f'<tr><th scope="row">{depth:g} %</th>' + "".join(map(_cell, values)) + "</tr>"
        for depth, values in zip(cells.depths, cells.values, strict=True)
    )
    label = f"{title}: percentage found, by depth and length" if title else "Percentage found, by depth and length"
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return (
        f'<div class="cells" tabindex="0" role="region" aria-label="{escape(label)}"><table>{caption}'
        f'<thead><tr><th scope="col">depth \\ tokens</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def cells_style() -> str:
    """The style of `cells_html`, once a page."""
    shades = " ".join(
        f".cells .p{level} {{ background-color: rgb({POSITIVE} / {0.6 * level / SHADES:.2f}) }}"
        for level in range(1, SHADES + 1)
    )
    return (
        "<style>.cells { overflow-x: auto; margin: 0 0 1rem } .cells table { border-collapse: collapse; width: auto;"
        " font-size: 0.8rem; font-variant-numeric: tabular-nums }"
        " .cells caption { text-align: left; font-weight: 600; padding: 0 0 0.4rem; white-space: nowrap }"
        " .cells table th { position: static; background: none; font-weight: 400; max-width: none }"
        " .cells th, .cells td { padding: 0.3rem 0.55rem; text-align: right; border: 0; white-space: nowrap }"
        " .cells td { border: 1px solid transparent; background-clip: padding-box; color: var(--ink, CanvasText);"
        " min-width: 2.6rem; text-align: center } .cells thead th { text-align: center }"
        " .cells th:first-child { text-align: left }"
        f" {shades}</style>"
    )


def _cell(value: float) -> str:
    name = shade(value, 1.0)
    given = f' class="{name}"' if name else ""
    return f"<td{given}>{100 * value:.0f}</td>"
