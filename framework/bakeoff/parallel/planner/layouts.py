"""The ways to lay a number of devices out, and which links each dimension then goes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Layout(NamedTuple):
    """Sizes of a mesh's dimensions, the outermost first: neighbours on a node differ in `tensor`."""

    data: int = 1
    expert: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.batch_ranks * self.context * self.tensor

    @property
    def batch_ranks(self) -> int:
        """Ranks that each read rows of their own."""
        return self.data * self.expert * self.shard

    def stride(self, dimension: str) -> int:
        """How many ranks lie between neighbours along a dimension."""
        inner = self[self._fields.index(dimension) + 1 :]
        product = 1
        for size in inner:
            product *= size
        return product

    def on_node(self, dimension: str, per_node: int) -> int:
        """How many ranks of one group along a dimension share a node."""
        return max(1, min(getattr(self, dimension), per_node // self.stride(dimension)))

    def __str__(self) -> str:
        sizes = self._asdict().items()
        return " x ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one device"


class Shares(NamedTuple):
    """What a rank sends within its node, and to other nodes."""

    inside: float
    between: float


def over_links(sent: float, layout: Layout, dimension: str, per_node: int) -> Shares:
    """Where `sent` bytes of a ring along a dimension go.

    Of m neighbours on each node one link in m leaves it, and rings that start at each of them spread that over the
    adapters of all m.
    """
    here = layout.on_node(dimension, per_node)
    leaving = 0.0 if here >= getattr(layout, dimension) else 1 / here
    return Shares(sent * (1 - leaving), sent * leaving)


def layouts(devices: int, *, context: bool = False, expert: bool = False) -> Iterator[Layout]:
    """All products of dimensions that make `devices`; `context` and `expert` stay 1 unless asked for."""
    free = {"data": True, "expert": expert, "shard": True, "context": context, "tensor": True}
    open_dimensions = [name for name, varies in free.items() if varies]
    for sizes in _products(devices, len(open_dimensions)):
        yield Layout(**dict(zip(open_dimensions, sizes, strict=True)))


def _products(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ordered ways to write `total` as a product of `count` sizes."""
    if count == 1:
        yield (total,)
        return
    for first in range(1, total + 1):
        if total % first == 0:
            for rest in _products(total // first, count - 1):
                yield (first, *rest)
