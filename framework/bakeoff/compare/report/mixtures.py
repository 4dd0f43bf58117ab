"""Page `mixtures`: what the experts of all arms do."""

from __future__ import annotations

from typing import ClassVar

from bakeoff.compare.layers import over_layers
from bakeoff.compare.report.grids import note
from bakeoff.compare.report.marks import sample
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.report.still import still_curves
from bakeoff.compare.results import Arm, Results
from bakeoff.compare.store import Record
from bakeoff.compare.tried import Shown
from bakeoff.evaluate.tasks.routing_html import framed, loads
from bakeoff.interfaces.page import Page

TASK = "routing"
#: What is drawn against training, and in which words.
CURVES = (
    ("max_violation", "maximum violation: the largest load over the mean, less 1"),
    ("entropy", "entropy of the router, nats"),
    ("dropped", "share of choices dropped"),
)


class MixturesPage(Page):
    """Curves of balance, entropy and dropped choices over training, as recorded; and what task `routing` shows: experts
    against layers and against classes of tokens, and text in the colours of its experts."""

    title = "Mixtures of experts"
    tasks: ClassVar = (TASK,)

    def html(self, comparison: Results) -> str:
        """Of the arms that have a mixture; nothing where none has."""
        names = {arm.name: mixtures_of(arm) for arm in comparison.arms}
        tried = {one.arm: one for task in comparison.tasks if task.name == TASK for one in task.shown}
        arms = [arm for arm in comparison.arms if names[arm.name] or arm.name in tried]
        if not arms:
            return ""
        return join(
            _curves(comparison, names),
            *(_arm(arm, names[arm.name], tried.get(arm.name), first=arm is arms[0]) for arm in arms),
        )


def mixtures_of(arm: Arm) -> list[str]:
    """The names under which an arm's layers tell of a mixture, such as `feed_forward`."""
    found: dict[str, None] = {}
    for trial in arm.done():
        told = (trial.result or {}).get("layers") or {}
        ends = {key.partition(".")[2].rpartition(".")[::2] for key in [*told.get("series", {}), *told.get("last", {})]}
        found |= {name: None for name, end in sorted(ends) if end == "max_violation" and (name, "load") in ends}
    return list(found)


def _curves(results: Results, names: dict[str, list[str]]) -> Html:
    """A chart a figure, where it is known and is not 0 throughout."""
    arms = [arm.name for arm in results.arms]
    charts, drawn = [], set()
    for figure, label in CURVES:
        every = {arm.name: _curve(arm, [f"{name}.{figure}" for name in names[arm.name]]) for arm in results.arms}
        series = {name: points for name, points in every.items() if len(points) > 1}
        if any(point["high"] for points in series.values() for point in points):
            drawn |= set(series)
            still = still_curves({"label": label, "series": series}, arms, begin=0.0)
            charts.append(element("div", still, class_="chart"))
    if not charts:
        return join()
    keys = [element("span", sample(arms.index(name)), name) for name in arms if name in drawn]
    text = (
        "Means over seeds and layers at the steps that the curve records; the band reaches from the lowest to the "
        "highest layer. What no arm drops is not drawn."
    )
    return join(
        element("p", *keys, class_="arms"),
        element("div", *charts, class_="pair"),
        note(text),
    )


def _curve(arm: Arm, names: list[str]) -> list[dict[str, float]]:
    return over_layers([trial.result for trial in arm.done() if trial.result], names)


def _arm(arm: Arm, names: list[str], shown: Shown | None, *, first: bool) -> Html:
    """What the task shows, or else the loads that training has recorded."""
    if shown is not None:
        what, body = f"{arm.name}, seed {shown.seed}", Html(shown.html)
    else:
        trial = arm.done()[0]
        text = (
            "Loads at the last step of training. With measure: [routing], classes of tokens and text are shown as well."
        )
        what, body = f"{arm.name}, seed {trial.seed}", join(Html(framed(loads(_last(trial, names)))), note(text))
    return element("details", element("summary", what), body, open=first)


def _last(trial: Record, names: list[str]) -> dict[str, list[float]]:
    """The loads at the last step, by layer, with the mixture's name where there are several."""
    last = (trial.result or {})["layers"]["last"]
    layers = list(dict.fromkeys(key.partition(".")[0] for key in last))
    found = {(layer, name): last.get(f"{layer}.{name}.load") for layer in layers for name in names}
    return {
        layer if len(names) == 1 else f"{layer}.{name}": values for (layer, name), values in found.items() if values
    }
