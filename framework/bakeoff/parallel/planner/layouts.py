"""The ways to lay a number of devices out, and which links each dimension then goes over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from bakeoff.parallel.mesh import DIMENSIONS, Sizes


def stride(sizes: Sizes, dimension: str) -> int:
    """How many ranks lie between neighbours along a dimension."""
    inner = DIMENSIONS[DIMENSIONS.index(dimension) + 1 :]
    return math.prod(getattr(sizes, name) for name in inner)


def on_node(sizes: Sizes, dimension: str, per_node: int) -> int:
    """How many ranks of one group along a dimension share a node."""
    return max(1, min(getattr(sizes, dimension), per_node // stride(sizes, dimension)))


class Shares(NamedTuple):
    """What a rank sends within its node, and to other nodes."""

    inside: float
    between: float


def over_links(sent: float, sizes: Sizes, dimension: str, per_node: int) -> Shares:
    """Where `sent` bytes of a ring along a dimension go.

    Of m neighbours on each node one link in m leaves it, and rings that start at each of them spread that over the
    adapters of all m.
    """
    here = on_node(sizes, dimension, per_node)
    leaving = 0.0 if here >= getattr(sizes, dimension) else 1 / here
    return Shares(sent * (1 - leaving), sent * leaving)


def layouts(devices: int, *, context: bool = False, expert: bool = False) -> Iterator[Sizes]:
    """All products of dimensions that make `devices`; `context` and `expert` stay 1 unless asked for."""
    asked = {"context": context, "expert": expert}
    varying = [name for name in DIMENSIONS if asked.get(name, True)]
    for sizes in _products(devices, len(varying)):
        yield Sizes(**dict(zip(varying, sizes, strict=True)))


def _products(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ordered ways to write `total` as a product of `count` sizes."""
    if count == 1:
        yield (total,)
        return
    for first in range(1, total + 1):
        if total % first == 0:
            for rest in _products(total // first, count - 1):
                yield (first, *rest)
