"""What the charts of the page show, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

from bakeoff.compare.judging import Judging
from bakeoff.compare.results import Arm, Results
from bakeoff.compare.tried import Tried

#: A curve is drawn with at most this many points; training loss is averaged between them.
POINTS = 160

#: All curves of one metric together are drawn with at most this many.
ALL_POINTS = 1200


@dataclass(frozen=True)
class Axis:
    """Something that quality can be held against."""

    key: str
    """Column of the table."""
    label: str
    words: str
    """How a tick is written: `count` or `size`."""
    more_is_better: bool


SPEED = (
    Axis("tokens_per_second", "training, tokens per second", "count", True),
    Axis("decode_tokens_per_second", "decoding, tokens per second", "count", True),
    Axis("flops_per_token", "forward FLOPs per token", "count", False),
)
MEMORY = (
    Axis("peak_bytes", "peak memory of training", "size", False),
    Axis("state_bytes", "state per sequence", "size", False),
    Axis("parameters", "parameters", "count", False),
)


def chart_data(results: Results) -> dict[str, Any]:
    """All charts: learning curves by metric, quality against speed and memory, and figures of tasks."""
    return {
        "unit": results.metric.unit,
        "arms": [arm.name for arm in results.arms],
        "curves": [curve for curve in (_validation(results), _loss(results)) if curve["series"]],
        "tradeoffs": {
            "speed": [t for axis in SPEED if (t := tradeoff(results, axis))],
            "memory": [t for axis in MEMORY if (t := tradeoff(results, axis))],
            **{task_chart(task): found for task in results.tasks if (found := _task_tradeoffs(task))},
        },
    }


def task_chart(task: Tried) -> str:
    """What the chart of a task is called."""
    return f"task {task.label}"


def _task_tradeoffs(task: Tried) -> list[dict[str, Any]]:
    return [found for figure in task.judged if (found := task_tradeoff(task, figure))]


def _validation(results: Results) -> dict[str, Any]:
    series = {}
    for arm in results.arms:
        points = curve(arm, results.metric.column, 1)
        every = math.ceil(len(points) / _most(results))
        if len(points) > 1:
            series[arm.name] = points[::-1][::every][::-1]
    return {"label": f"validation, {results.metric.unit}", "series": series}


def _loss(results: Results) -> dict[str, Any]:
    longest = max((len(t.result["curve"]) for arm in results.arms for t in arm.done() if t.result), default=0)
    every = max(1, math.ceil(longest / _most(results)))
    series = {arm.name: points for arm in results.arms if len(points := curve(arm, "loss", every)) > 1}
    return {"label": "training loss, nats per token", "series": series}


def _most(results: Results) -> int:
    return max(2, min(POINTS, ALL_POINTS // len(results.arms)))


def packed(data: dict[str, Any]) -> dict[str, Any]:
    """The same for scripts, made small: curves by column, in few digits; columns equal in all arms stand once."""
    return data | {"curves": [_packed(curve) for curve in data["curves"]]}


def _packed(curve: dict[str, Any]) -> dict[str, Any]:
    series = {name: _columns(points) for name, points in curve["series"].items()}
    first, *others = series.values()
    shared = {key: column for key, column in first.items() if all(column == other.get(key) for other in others)}
    own = {name: {key: columns[key] for key in columns if key not in shared} for name, columns in series.items()}
    return curve | {"shared": shared, "series": own}


def _columns(points: Items[Mapping[str, float]]) -> dict[str, list[float]]:
    """Work in billions of FLOPs, so that its digits are few."""
    known = [key for key in ("tokens", "flops", "seconds") if all(key in point for point in points)]
    axes = {key: [_short(p[key] / (1e9 if key == "flops" else 1), 4) for p in points] for key in known}
    return axes | {key: [_short(point[key], 5) for point in points] for key in ("mean", "low", "high")}


def _short(value: float, digits: int) -> float:
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e16 else short


def _number(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def curve(arm: Arm, column: str, every: int) -> list[dict[str, float]]:
    """Mean, lowest and highest seed of a column at the steps that all seeds have, averaged over `every` steps.

    `flops` is left out where a part of the arm declares no cost.
    """
    seeds = []
    for trial in arm.done():
        points = trial.result["curve"] if trial.result else []
        seeds.append({p["step"]: p for p in points if _number(p.get(column))})
    if not seeds:
        return []
    steps = sorted(set.intersection(*(set(seed) for seed in seeds)))
    chunks = [steps[i : i + every] for i in range(0, len(steps), every)]
    return [_point(seeds, column, chunk) for chunk in chunks]


def _point(seeds: Items[Mapping[int, Mapping[str, float]]], column: str, steps: Items[int]) -> dict[str, float]:
    values = [math.fsum(seed[step][column] for step in steps) / len(steps) for seed in seeds]
    last = [seed[steps[-1]] for seed in seeds]
    known = [axis for axis in ("tokens", "flops", "seconds") if all(_number(p[axis]) for p in last)]
    at = {axis: math.fsum(p[axis] for p in last) / len(last) for axis in known}
    return {"step": steps[-1], **at, "mean": math.fsum(values) / len(values), "low": min(values), "high": max(values)}


def tradeoff(results: Results, axis: Axis) -> dict[str, Any] | None:
    """Quality of each arm against a cost, with the arms on the Pareto front; None where fewer than two are known."""
    return _against(results.judged, axis, {row["arm"]: row[axis.key] for row in results.table})


def task_tradeoff(task: Tried, figure: str) -> dict[str, Any] | None:
    """A figure of a task against the one that it is drawn against; None where fewer than two arms have both."""
    other = task.figures[figure].against
    if other is None:
        return None
    words = "size" if task.figures[other].unit == "bytes" else "count"
    axis = Axis(task.key(other), task.metric(other).unit, words, task.figures[other].better == "more")
    means = {arm: math.fsum(own.values()) / len(own) for arm, own in task.values[other].items() if own}
    return _against(task.judged[figure], axis, means)


def _against(judged: Judging, axis: Axis, costs: Mapping[str, float | None]) -> dict[str, Any] | None:
    points = []
    for arm, quality in judged.quality.items():
        x, seeds = costs.get(arm), judged.values[arm].values()
        if x is not None and arm not in judged.apart:
            points.append({"arm": arm, "x": x, "y": quality.mean, "low": min(seeds), "high": max(seeds)})
    if len(points) < 2:
        return None
    more = judged.metric.more_is_better
    front = pareto([(p["x"] * (-1) ** axis.more_is_better, p["y"] * (-1) ** more) for p in points])
    return {
        "label": axis.label,
        "words": axis.words,
        "more": axis.more_is_better,
        "unit": judged.metric.unit,
        "up": more,
        "points": points,
        "front": [points[i]["arm"] for i in front],
    }


def pareto(points: Items[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other beats, less being better in both, in order of the first number.

    A point is beaten by one that is as good in both and better in one.
    """
    order = sorted(range(len(points)), key=lambda i: points[i])
    front: list[int] = []
    for i in order:
        if not front or points[i][1] < points[front[-1]][1] or points[i] == points[front[-1]]:
            front.append(i)
    return front
