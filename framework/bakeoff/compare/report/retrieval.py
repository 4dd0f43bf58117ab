"""Page of what arms gain from what is looked up for them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from operator import itemgetter
from typing import ClassVar

from bakeoff.compare.report.grids import grid, note
from bakeoff.compare.report.lines import lines
from bakeoff.compare.report.long_context import each_asked
from bakeoff.compare.report.marks import COLOURS, dashes, mark, sample, swatch
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.results import Results
from bakeoff.compare.statistics import estimate
from bakeoff.compare.tried import Tried
from bakeoff.compare.words import signed
from bakeoff.interfaces.page import Page
from bakeoff.parts.curve_html import Line, curve_html

TASK = "retrieval"
#: Lines of what arms do without are dashed so: those of arms further down the list.
WITHOUT = 2 * COLOURS
OVERLAP = "overlap of a chunk with the database, at most"
GAIN, BITS = "gain, bits per byte", "bits per byte"


class RetrievalGains(Page):
    """What task `retrieval` found, of all arms side by side: gains with intervals over seeds, by overlap, by number of
    neighbours and by size of the database; and a text of each arm with what was found for it."""

    title = "Retrieval"
    tasks: ClassVar = (TASK,)

    def html(self, comparison: Results) -> str:
        """Of the arms that were tried; nothing where none was."""
        return each_asked(comparison, TASK, _asked)


def _asked(results: Results, task: Tried) -> Html:
    names = [arm.name for arm in results.arms]
    keys = [element("span", sample(names.index(name)), name) for name in names if name in task.drawn]
    text = (
        "Means over seeds; bands and ± are 95 % intervals over seeds. What is gained in chunks of little overlap can "
        "hardly have been copied. Dashed: the same models shown nothing. The vertical axes do not start at zero."
    )
    return join(
        _gains(results, task),
        element("p", *keys, class_="arms"),
        element("div", *_charts(task, names), class_="pair"),
        note(text),
        _by_overlap(results, task),
        *not_tried(results, task),
        *_texts(results, task),
    )


def _gains(results: Results, task: Tried) -> Html:
    """A row an arm: bits per byte with and without, and the gain against each condition."""
    rows: list[Items[str]] = []
    for index, arm in enumerate(results.arms):
        drawn = task.drawn.get(arm.name)
        if drawn:
            bits = [_within([one["bits"][name] for one in drawn]) for name in ("found", "none")]
            gains = [_within([one["gains"][name][0] for one in drawn], sign=True) for name in drawn[0]["gains"]]
            _, low, high = drawn[0]["gains"]["none"]
            rows.append([join(swatch(index), arm.name), *bits, *gains, f"{signed(low, 4)} to {signed(high, 4)}"])
    first = next(iter(task.drawn.values()))[0]
    words = {"none": "gain over nothing shown", "shuffled": "over neighbours of another chunk"}
    words["random"] = "over random chunks"
    head = ["arm", BITS, "shown nothing", *(words[name] for name in first["gains"])]
    kind, count = first["pieces"]
    text = (
        f"Of the same models and text: the gain is what they lose when they are not shown what was found. The last "
        f"column is of one seed, over nothing shown: its bootstrap interval over {count:,} {kind} of the text."
    )
    return join(grid("Gains by what is shown", [*head, "interval within one seed"], rows), note(text))


def _within(values: Items[float], *, sign: bool = False) -> str:
    """A mean with half of its interval over seeds."""
    found = estimate(values)
    half = "" if found.half is None else f" ±{found.half:.4f}"
    return (signed(found.mean, 4) if sign else f"{found.mean:.4f}") + half


def _charts(task: Tried, names: Items[str]) -> Iterator[Html]:
    """By overlap; by neighbours and by share, where several were tried."""
    gained = list(lines(task, names, lambda one: [(b["most"], b["without"] - b["found"]) for b in one["up_to"]]))
    yield _chart(gained, OVERLAP, GAIN)
    shown = list(lines(task, names, lambda one: [(b["most"], b["found"]) for b in one["up_to"]]))
    alone = list(lines(task, names, lambda one: [(b["most"], b["without"]) for b in one["up_to"]], further=WITHOUT))
    yield _chart([*shown, *alone], OVERLAP, f"{BITS}, with what was found and (dashed) without")
    for key, label in (("by_k", "neighbours of each chunk"), ("by_share", "share of the database's documents")):
        several = [line for line in lines(task, names, itemgetter(key)) if len(line.points) > 1]
        if several:
            yield _chart(several, label, f"{BITS}, by {label}")


def _chart(drawn: Items[Line], x_label: str, y_label: str) -> Html:
    def end(line: Line, x: str, y: str) -> Html:
        return join() if line.number >= WITHOUT else mark(line.number, x=x, y=y)

    return element("div", Html(curve_html(drawn, x_label, y_label, end=end, dashes=dashes)), class_="chart")


def _by_overlap(results: Results, task: Tried) -> Html:
    """A row an arm: what it gains in chunks of at most each overlap, and their share of the bytes."""
    first = next(iter(task.drawn.values()))[0]
    most = [bucket["most"] for bucket in first["up_to"]]
    shares = ["", *(f"{100 * bucket['share']:.1f} %" for bucket in first["up_to"])]
    rows: list[Items[str]] = [["share of bytes", *shares[1:]]]
    for index, arm in enumerate(results.arms):
        drawn = task.drawn.get(arm.name)
        if drawn:
            gains = [{b["most"]: b["without"] - b["found"] for b in one["up_to"]} for one in drawn]
            cells = [_within(own, sign=True) if (own := [g[end] for g in gains if end in g]) else "–" for end in most]
            rows.append([join(swatch(index), arm.name), *cells])
    head = ["arm", *(f"overlap ≤ {end:g}" for end in most)]
    text = (
        f"Gain in bits per byte of the tokens in whole chunks. Overlap: the longest run of tokens that a chunk has in "
        f"common with any of its {first['candidates']} nearest neighbours and what follows them, as a share of the "
        "chunk. The shares are the first arm's."
    )
    return join(grid("Gain by overlap", head, rows), note(text))


def not_tried(results: Results, task: Tried) -> Iterator[Html]:
    """Who was not tried, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for arm in results.arms:
        if arm.name in task.missing:
            reasons.setdefault(task.missing[arm.name], []).append(arm.name)
    for reason, arms in reasons.items():
        yield note(f"Not tried: {', '.join(arms)} ({reason}).")


def _texts(results: Results, task: Tried) -> Iterator[Html]:
    """What each arm's first seed shows, closed but for the first."""
    for number, piece in enumerate(task.shown):
        summary = element("summary", f"{piece.arm}, seed {piece.seed}: texts and what was found for them")
        yield element("details", summary, Html(piece.html), open=not number)
