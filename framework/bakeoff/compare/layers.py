"""What the layers of a trial told as it trained, as a comparison keeps and reports it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

#: Of how many steps a trial's result keeps what the layers told, at most.
STEPS = 160


def kept(rows: Items[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the rows of `layers.csv`: `steps`, evenly spread and with the last; `series`, by layer and name, what is one
    number at each of them; `last`, the vectors of the last step."""
    every = list(dict.fromkeys(row["step"] for row in rows))
    apart = math.ceil(len(every) / STEPS) or 1
    steps = every[::-1][::apart][::-1]
    series: dict[str, dict[int, float]] = {}
    last: dict[str, list[float]] = {}
    for row in rows:
        key = f"{row['layer']}.{row['name']}"
        if row["index"] is None:
            series.setdefault(key, {})[row["step"]] = row["value"]
        elif row["step"] == every[-1]:
            last.setdefault(key, []).append(row["value"])
    return {
        "steps": steps,
        "series": {key: [values.get(step) for step in steps] for key, values in series.items()},
        "last": last,
    }


def over_layers(results: Items[Mapping[str, Any]], names: Items[str]) -> list[dict[str, float]]:
    """A curve of what layers tell under any of `names`, from the results of an arm's seeds: at each step that all of
    them have, with its tokens, the mean over seeds and layers, and the lowest and highest layer (means over seeds)."""
    told = [result.get("layers") or {} for result in results]
    if not told or not all(one.get("series") for one in told):
        return []
    tokens = {row["step"]: row["tokens"] for row in results[0]["curve"]}
    seeds = [{step: _at(one, place, names) for place, step in enumerate(one["steps"])} for one in told]
    points = []
    for step in sorted(set.intersection(*map(set, seeds)) & set(tokens)):
        layers = [key for key in seeds[0][step] if all(key in seed[step] for seed in seeds)]
        means = [math.fsum(seed[step][key] for seed in seeds) / len(seeds) for key in layers]
        if means:
            at = {"step": step, "tokens": tokens[step]}
            points.append(at | {"mean": math.fsum(means) / len(means), "low": min(means), "high": max(means)})
    return points


def _at(told: Mapping[str, Any], place: int, names: Items[str]) -> dict[str, float]:
    """Layer and name -> value at one step."""
    found = {key: told["series"][key][place] for key in told["series"] if key.partition(".")[2] in names}
    return {key: value for key, value in found.items() if value is not None and math.isfinite(value)}
