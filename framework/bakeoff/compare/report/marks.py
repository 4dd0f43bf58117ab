"""How an arm is told from the others: by colour, shape and dashes, the same everywhere on the page."""

from __future__ import annotations

from bakeoff.compare.report.markup import Html, element, join

#: Colours of each scheme in the style sheet, `--c0` and on.
COLOURS = 8

#: Outlines around the origin, about ten units wide.
SHAPES = (
    "M5 0A5 5 0 1 1 -5 0A5 5 0 1 1 5 0Z",
    "M-4.6 -4.6H4.6V4.6H-4.6Z",
    "M0 -6.4L6.4 0L0 6.4L-6.4 0Z",
    "M0 -6L5.8 4.6H-5.8Z",
    "M0 6L5.8 -4.6H-5.8Z",
    "M-2 -6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
    "M0 -6.2L5.9 -1.9L3.6 5H-3.6L-5.9 -1.9Z",
    "M-3 -5.4H3L6 0L3 5.4H-3L-6 0Z",
)

#: Strokes of a line: those of the first eight arms, of the next eight, …
DASHES = ("none", "8 3", "2 3", "9 3 2 3")


def shape(index: int) -> int:
    """Which shape an arm has: arms of one colour differ in it."""
    return (index + index // COLOURS) % len(SHAPES)


def dashes(index: int) -> str:
    """The `stroke-dasharray` of an arm's line."""
    return DASHES[index // COLOURS % len(DASHES)]


def paint(index: int) -> dict[str, int]:
    """Attributes that give an element its arm and the arm's colour."""
    return {"data_arm": index, "data_ink": index % COLOURS}


def mark(index: int, **attributes: str | float) -> Html:
    """An arm's mark, to stand in an SVG; `x` and `y` place its centre."""
    return element("use", href=f"#mark{shape(index)}", class_="mark", **paint(index), **attributes)


def swatch(index: int) -> Html:
    """An arm's mark as a picture of its own, to stand before its name."""
    return element("svg", mark(index), class_="swatch", viewBox="-8 -8 16 16", aria_hidden="true")


def sample(index: int) -> Html:
    """An arm's line with its mark: the key to the charts."""
    line = element("path", d="M-15 0H15", class_="line", stroke_dasharray=dashes(index), **paint(index))
    return element("svg", line, mark(index), class_="sample", viewBox="-15 -8 30 16", aria_hidden="true")


def definitions() -> Html:
    """The shapes, once a page."""
    paths = (element("path", id=f"mark{i}", d=outline) for i, outline in enumerate(SHAPES))
    return element("svg", element("defs", join(*paths)), class_="shapes", aria_hidden="true")
