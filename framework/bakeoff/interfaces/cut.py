"""How ranks that work on one part together share out its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def portion(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """Start and stop of what `rank` has of `size` things; where they do not divide, the first ranks have one more."""
    each, more = divmod(size, ranks)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


@dataclass(frozen=True)
class Cut:
    """One dimension of a parameter or buffer, shared out among ranks.

    Parameters
    ----------
    dim : which dimension: 0 of a weight (d_out, d_in) for what a part computes by itself, 1 for what it sums over.
    unit : entries that stay together, such as the N channels of a head.
    stacked : sizes of what stands in the dimension one after the other, each shared out by itself; None: one thing.
    uneven : ranks may hold different numbers of units, the first ones one more than the others.
    """

    dim: int
    unit: int = 1
    stacked: tuple[int, ...] | None = None
    uneven: bool = False

    def ranges(self, size: int, ranks: int, rank: int) -> tuple[tuple[int, int], ...]:
        """Start and stop in the whole dimension, of `size` entries, of what `rank` of `ranks` holds.

        Raises `ValueError` with both numbers where the units do not divide.
        """
        sizes = (size,) if self.stacked is None else self.stacked
        assert sum(sizes) == size
        found, start = [], 0
        for one in sizes:
            units, rest = divmod(one, self.unit)
            if rest or (units % ranks and not self.uneven):
                of = f" in units of {self.unit}" if self.unit > 1 else ""
                step = self.unit * ranks
                near = ", ".join(str(size) for size in (one // step * step, -(-one // step) * step) if size)
                raise ValueError(f"{one} channels{of} do not divide over {ranks} tensor ranks; nearest that do: {near}")
            first, stop = portion(units, ranks, rank)
            found.append((start + first * self.unit, start + stop * self.unit))
            start += one
        return tuple(found)


def check_heads(heads: int, ranks: int, name: str = "n_heads") -> None:
    """Raise `ValueError` if `ranks` tensor ranks do not divide the heads."""
    if heads % ranks:
        allowed = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(
            f"{name} is {heads} and the mesh's tensor degree {ranks}: whole heads are shared out, so the degree must "
            f"divide {name}; possible: {allowed}"
        )


@dataclass(frozen=True)
class Share:
    """What this process holds of a parameter that is cut: `ranges` of its dimension `dim`, which has `size` entries."""

    dim: int
    size: int
    ranges: tuple[tuple[int, int], ...]
    ranks: DeviceMesh
    """Those that hold the rest."""

    def of(self, whole: Tensor) -> Tensor:
        """The share of a whole tensor, in memory of its own."""
        pieces = [whole.narrow(self.dim, start, stop - start) for start, stop in self.ranges]
        return torch.cat(pieces, self.dim) if len(pieces) > 1 else pieces[0].clone()

    def whole(self, shape: torch.Size) -> torch.Size:
        """The shape of the whole, from that of the share."""
        return torch.Size((*shape[: self.dim], self.size, *shape[self.dim + 1 :]))


def shares_of(owner: torch.nn.Module) -> dict[str, Share]:
    """What a module's own parameters and buffers are shares of, by name; of those that are whole, nothing."""
    return owner.__dict__.get("shares", {})


def held(owner: torch.nn.Module, name: str) -> Tensor:
    """The parameter or buffer that stands directly in a module; the attribute may give what an adapter makes of it."""
    parameter = owner._parameters.get(name)
    own = owner._buffers.get(name) if parameter is None else parameter
    if own is None:
        raise AttributeError(f"{type(owner).__name__} holds no parameter or buffer '{name}'")
    return own


def local(tensor: Tensor) -> tuple[Tensor, int]:
    """What this process holds of a tensor that is sharded along dimension 0, and the index of its first row: all of it,
    and 0, of a plain one."""
    if not hasattr(tensor, "to_local"):
        return tensor, 0
    (placement,), mesh = tensor.placements, tensor.device_mesh  # type: ignore[attr-defined]
    if placement.is_replicate():
        return tensor.to_local(), 0
    assert placement.is_shard(0)
    rows = -(-tensor.shape[0] // mesh.size())
    return tensor.to_local(), min(mesh.get_local_rank() * rows, tensor.shape[0])
