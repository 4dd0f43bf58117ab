"""What came out of the tasks that arms were tried at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bakeoff.compare.judging import Judging, Metric
from bakeoff.compare.verdict import Verdict
from bakeoff.compare.words import size
from bakeoff.interfaces.task import Figure


@dataclass(frozen=True)
class Shown:
    """What one trial shows of a task: the first of its arm that shows anything."""

    arm: str
    seed: int
    html: str


class Tried:
    """One task with all arms.

    Attributes
    ----------
    label : the task with its arguments. figures : what each figure is, in order. values : figure -> arm -> seed ->
    value. judged : those figures that arms are judged by. missing : arm -> why it has no figure, where that is known.
    shown : at most one of each arm. drawn : arm -> what each of its trials gives to be drawn, where any does.
    """

    def __init__(self, label: str, figures: Mapping[str, Any], arms: list[Any], baseline: str):
        self.label = label
        self.figures = {name: Figure(**about) for name, about in figures.items()}
        self.values = {name: {arm.name: arm.values(self.key(name)) for arm in arms} for name in self.figures}
        self.judged = {
            name: Judging(self.metric(name), self.values[name], baseline)
            for name, figure in self.figures.items()
            if figure.better
        }
        done = [trial for arm in arms for trial in arm.done()]
        self.missing = {t.arm: t.result["unmeasured"][label] for t in done if label in t.result["unmeasured"]}
        pieces = [Shown(t.arm, t.seed, t.result["shown"][label]) for t in done if label in t.result.get("shown", {})]
        self.shown = list({piece.arm: piece for piece in reversed(pieces)}.values())[::-1]
        self.drawn: dict[str, list[dict[str, Any]]] = {}
        for trial in done:
            if label in trial.result.get("drawn", {}):
                self.drawn.setdefault(trial.arm, []).append(trial.result["drawn"][label])

    @property
    def name(self) -> str:
        """The task without its arguments."""
        return self.label.partition("(")[0]

    def key(self, figure: str) -> str:
        """Where a figure stands in a trial's measures."""
        return f"{self.label}.{figure}"

    def metric(self, figure: str) -> Metric:
        """A figure as arms are judged by it."""
        words = f"{self.name} {figure.replace('_', ' ')}"
        return Metric(self.key(figure), self.key(figure), words, self.figures[figure].better == "more")

    def verdict(self, figure: str, arm: str) -> Verdict:
        """What may be said of an arm by one figure."""
        found = self.judged[figure].verdict(arm)
        reason = self.missing.get(arm)
        return found or (
            Verdict("failed", f"not measured: {reason}") if reason else Verdict("waiting", "no result yet")
        )

    def written(self, figure: str, arm: str) -> str:
        """An arm's mean with half its interval, or, of what is not averaged, the value on each seed."""
        values, about = self.values[figure][arm], self.figures[figure]
        if not values:
            return "–"
        if about.unit == "index":
            return ", ".join(f"{value:.0f}" for _, value in sorted(values.items()))
        mean = sum(values.values()) / len(values)
        if about.unit == "bytes":
            return size(mean)
        own = self.judged[figure].quality[arm] if figure in self.judged else None
        half = "" if own is None or own.half is None else f" ±{own.half:.3f}"
        return f"{mean:.3f}{half}" if about.unit == "share" or own else f"{mean:.4g}"
