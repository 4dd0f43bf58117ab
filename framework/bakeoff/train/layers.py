"""What the layers of a model tell of themselves as it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from bakeoff.train.table import Cell, Table

#: What a layer tells in plain numbers, by its number and name: "3.feed_forward.load".
Told = dict[str, float | list[float]]


class Layers(Table):
    """`layers.csv`: a number a row, with the layer and the name that it has there; those of a vector have an index."""

    columns: ClassVar = ("step", "layer", "name", "index", "value")
    texts: ClassVar = ("name",)


def plain(statistics: Mapping[str, Tensor]) -> Told:
    """Tensors by layer and name, scalars or vectors, as numbers: one transfer from the device."""
    if not statistics:
        return {}
    flat = torch.cat([value.detach().float().flatten() for value in statistics.values()]).tolist()
    values = (float(f"{value:.7g}") for value in flat)  # all the digits that float32 has
    return {
        name: [next(values) for _ in range(value.numel())] if value.ndim else next(values)
        for name, value in statistics.items()
    }


def rows_of(told: Told, step: int) -> Iterator[dict[str, Cell]]:
    """Rows of `layers.csv`."""
    for key, found in told.items():
        layer, _, name = key.partition(".")
        row: dict[str, Cell] = {"step": step, "layer": int(layer), "name": name}
        if isinstance(found, list):
            yield from (row | {"index": index, "value": value} for index, value in enumerate(found))
        else:
            yield row | {"value": found}


def scalars(told: Told) -> dict[str, float]:
    """For loggers: what is one number as `layer_3.NAME`, and its mean over the layers that tell it as `layers.NAME`."""
    single = {key: found for key, found in told.items() if not isinstance(found, list)}
    by_name: dict[str, list[float]] = {}
    for key, value in single.items():
        by_name.setdefault(key.partition(".")[2], []).append(value)
    means = {f"layers.{name}": sum(values) / len(values) for name, values in by_name.items()}
    return {f"layer_{key}": value for key, value in single.items()} | means
