"""The search that every arm gets alike, and what it chooses.

All arms are tried at all points of the grid on one seed of its own, none of the reported seeds; each arm is then
trained on all seeds at its best point. So the choice, made among as many points for each arm, flatters no reported
number by a lucky seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

from bakeoff.compare.results import Results

Point = dict[str, Any]


def points(grid: Mapping[str, Items[Any]]) -> list[Point]:
    """All combinations, the last path fastest; one empty point where nothing is tuned."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def label(point: Point) -> str:
    """`lr 0.001, width 256`: the last word of each path, and its value."""
    return ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in point.items())


def own_seed(seeds: Items[int]) -> int:
    """The seed of the search: the first number above all reported seeds."""
    return max(seeds) + 1


def search(results: Results, arm: str) -> dict[str, float | None]:
    """The metric at each point of an arm's search by label; None where the trial has no result."""
    trials = [trial for trial in results.trials if trial.arm == arm and trial.stage == "tune"]
    return {label(t.point): t.result["measures"].get(results.metric.key) if t.result else None for t in trials}


def choose(results: Results, arm: str) -> Point | None:
    """The arm's best point; of equals the first of the grid; None where no point has a result."""
    best: tuple[float, Point] | None = None
    for trial in results.trials:
        if trial.arm == arm and trial.stage == "tune" and trial.result:
            value = trial.result["measures"].get(results.metric.key)
            if value is not None and (best is None or value < best[0]):
                best = value, trial.point
    return None if best is None else best[1]


def at_edge(results: Results) -> list[str]:
    """A sentence for each value at an edge of the grid that arms are best at."""
    said = []
    for path, values in results.plan["tuning"]["grid"].items():
        ordered = sorted(values) if all(isinstance(value, (int, float)) for value in values) else []
        if len(ordered) < 2:
            continue
        for edge, which, side in ((ordered[0], "least", "below"), (ordered[-1], "greatest", "above")):
            arms = [a.name for a in results.arms if (choose(results, a.name) or {}).get(path) == edge]
            if arms:
                best = "is best" if len(arms) == 1 else "are best"
                said.append(
                    f"{', '.join(arms)} {best} at {path} {edge}, the {which} value tried, and may do better {side} it."
                )
    return said
