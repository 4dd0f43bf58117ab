"""The mesh: ranks in a grid whose dimensions say what they share out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING

from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from bakeoff.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Sizes:
    """How many ranks stand along each dimension, the ones next to each other last.

    data : replicas of the model. expert : of replicas too, among which experts are spread. shard : ranks that hold a
    shard of each parameter, gradient and moment, and gather what they need. context : of a sequence. tensor : that work
    on each part together.
    """

    data: int = 1
    expert: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if size < 1:
                raise UserError(f"trainer.strategy.{name} is {size}; it must be at least 1")

    @property
    def ranks(self) -> int:
        """All of them."""
        return math.prod(asdict(self).values())

    @property
    def batch(self) -> int:
        """Those that read rows of their own."""
        return self.data * self.expert * self.shard

    def check(self, devices: int, nodes: int) -> Sizes:
        """Itself; raises `UserError` if it has not as many ranks as there are processes."""
        if self.ranks != devices * nodes:
            raise UserError(
                f"the mesh has {self} = {self.ranks} ranks, but the run has {devices * nodes} processes "
                f"(trainer.devices {devices} x trainer.num_nodes {nodes}); change one of them so that both are equal"
            )
        return self

    def __str__(self) -> str:
        return " x ".join(f"{name} {size}" for name, size in asdict(self).items() if size > 1) or "data 1"


#: Names of the dimensions, in order.
DIMENSIONS = tuple(field.name for field in fields(Sizes))
#: Along these, ranks read rows of their own.
BATCH = ("data", "expert", "shard")


class Mesh:
    """The ranks of this job as a grid; every process makes one, after the process group has begun.

    Attributes
    ----------
    grid : torch's mesh with all dimensions. sizes : of these.
    batch_rank : which of `sizes.batch` shares of a batch this rank reads.
    """

    def __init__(self, sizes: Sizes, device_type: str):
        self.sizes = sizes
        self.grid: DeviceMesh = init_device_mesh(device_type, tuple(asdict(sizes).values()), mesh_dim_names=DIMENSIONS)
        self.batch_rank = 0
        for name in BATCH:
            self.batch_rank = self.batch_rank * self.size(name) + self.grid.get_local_rank(name)
        self.group_of = cache(self._group_of)

    def size(self, name: str) -> int:
        """Ranks along a dimension."""
        return int(getattr(self.sizes, name))

    def along(self, name: str) -> DeviceMesh:
        """The ranks along one dimension that this one stands among."""
        return self.grid[name]

    def several(self, names: frozenset[str]) -> frozenset[str]:
        """Those of the dimensions that have more than one rank."""
        return frozenset(name for name in names if self.size(name) > 1)

    def _group_of(self, names: frozenset[str]) -> ProcessGroup | None:
        """The ranks that differ from this one along some of these dimensions only; None for this one alone.

        All ranks must ask for the same in the same order.
        """
        names = self.several(names)
        if not names:
            return None
        if len(names) == 1:
            return self.grid.get_group(next(iter(names)))
        dims = [i for i, name in enumerate(DIMENSIONS) if name in names]
        others = [i for i in range(len(DIMENSIONS)) if i not in dims]
        rows = self.grid.mesh.permute(*others, *dims).reshape(-1, math.prod(self.size(name) for name in names))
        own, _ = distributed.new_subgroups_by_enumeration(rows.tolist())
        return own
