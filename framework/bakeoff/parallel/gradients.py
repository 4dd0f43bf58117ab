"""Gradients of a model that is laid out on a mesh: added up over the ranks that have parts of them, and measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from bakeoff.interfaces.cut import local
from bakeoff.parallel.mesh import Mesh

#: Numbers that are sent at once.
BUCKET = 2**23


@dataclass(frozen=True, eq=False)
class Leaf:
    """What this rank holds of a parameter.

    Attributes
    ----------
    parameter : as the model has it. own : a plain one in the same memory, which the optimizer changes.
    summed : dimensions of the mesh along which each rank computes a part of the gradient, still to be added up.
    different : dimensions along which ranks hold different pieces.
    """

    name: str
    parameter: nn.Parameter
    own: nn.Parameter
    summed: frozenset[str]
    different: frozenset[str]

    def adopt(self) -> None:
        """Let the plain parameter stand in the model's memory, and have its gradient."""
        if self.own is not self.parameter:
            gradient = self.parameter.grad
            self.own.data = local(self.parameter)[0].detach()
            self.own.grad = None if gradient is None else local(gradient)[0]

    def drop(self) -> None:
        """No gradient."""
        self.parameter.grad = self.own.grad = None


class Gradients:
    """The gradients of all trained leaves, which stand in the same order on all ranks; all ranks call alike."""

    def __init__(self, leaves: Iterable[Leaf], mesh: Mesh):
        self.leaves = [leaf for leaf in leaves if leaf.own.requires_grad]
        self.together = _grouped(self.leaves, mesh, lambda leaf: leaf.summed)
        self.apart = _grouped(self.leaves, mesh, lambda leaf: leaf.different)

    def adopt(self) -> None:
        """Let the plain parameters have the gradients of the model's, and stand in their memory."""
        for leaf in self.leaves:
            leaf.adopt()

    def drop(self) -> None:
        """No parameter has a gradient."""
        for leaf in self.leaves:
            leaf.drop()

    def add_up(self) -> None:
        """Make each gradient the sum over all rows of the step; a parameter that no rank has used gets none."""
        for group, leaves in self.together:
            if group is not None:
                for bucket in _buckets(leaves):
                    _sum([leaf.own for leaf in bucket], group)

    def norm(self) -> Tensor:
        """The norm of the whole model's gradient, float64, the same on all ranks."""
        total = torch.zeros((), dtype=torch.float64)
        for group, leaves in self.apart:
            gradients = [leaf.own.grad for leaf in leaves if leaf.own.grad is not None]
            square = leaves[0].own.new_zeros((), dtype=torch.float64)
            if gradients:
                square = torch.nn.utils.get_total_norm(gradients).double().square()
            if group is not None:
                distributed.all_reduce(square, group=group)
            total = total.to(square.device) + square
        return total.sqrt()

    def not_finite(self) -> list[str]:
        """Names of the parameters whose gradients are not finite on any rank, in order; the same on all ranks."""
        own = [leaf.own.grad for leaf in self.leaves]
        odd = torch.tensor([grad is not None and not bool(grad.isfinite().all()) for grad in own], dtype=torch.float32)
        odd = odd.to(self.leaves[0].own.device)
        distributed.all_reduce(odd)
        return [leaf.name for leaf, number in zip(self.leaves, odd.tolist(), strict=True) if number]


def _grouped(
    leaves: Iterable[Leaf], mesh: Mesh, dimensions: Callable[[Leaf], frozenset[str]]
) -> list[tuple[ProcessGroup | None, list[Leaf]]]:
    """Leaves by the ranks that have to do with them."""
    found: dict[frozenset[str], list[Leaf]] = {}
    for leaf in leaves:
        found.setdefault(mesh.several(dimensions(leaf)), []).append(leaf)
    return [(mesh.group_of(names), found[names]) for names in sorted(found, key=sorted)]


def _buckets(leaves: Iterable[Leaf]) -> Iterator[list[Leaf]]:
    """Leaves of one type and device, a bucket's numbers at a time."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Leaf]] = {}
    for leaf in leaves:
        kinds.setdefault((leaf.own.dtype, leaf.own.device), []).append(leaf)
    for same in kinds.values():
        bucket: list[Leaf] = []
        size = 0
        for leaf in same:
            bucket.append(leaf)
            size += leaf.own.numel()
            if size >= BUCKET:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


def _sum(parameters: list[nn.Parameter], group: ProcessGroup) -> None:
    """Add up gradients over a group, together with how many ranks have each."""
    like = parameters[0]
    there = like.new_tensor([parameter.grad is not None for parameter in parameters])
    each = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([*(gradient.reshape(-1) for gradient in each), there])
    distributed.all_reduce(flat, group=group)
    *summed, there = flat.split([*(gradient.numel() for gradient in each), len(parameters)])
    used = all(parameter.grad is not None for parameter in parameters)
    ranks = [1.0] * len(parameters) if used else there.tolist()  # which waits for a device
    for parameter, gradient, count in zip(parameters, summed, ranks, strict=True):
        parameter.grad = gradient.view_as(parameter) if count else None
