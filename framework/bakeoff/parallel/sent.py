"""What a rank sends, counted as it does."""

from __future__ import annotations

from typing import Any

from torch import Tensor, distributed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bakeoff.parallel.planner import traffic

#: Bytes that a rank sends, of a whole tensor's, by the collective's name; rings, as libraries use them for large ones.
_RINGS = {
    "allreduce_": traffic.all_reduce,
    "_allgather_base_": traffic.all_gather,
    "_reduce_scatter_base_": traffic.reduce_scatter,
}


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank sends inside it, in all and by name; each collective is done as a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, float] = {}

    @property
    def bytes(self) -> float:
        """In all."""
        return sum(self.by_name.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if func.namespace == "c10d" and name in (*_RINGS, "alltoall_base_", "send"):
            self.by_name[name] = self.by_name.get(name, 0.0) + _sent(name, args)
        return func(*args, **(kwargs or {}))


def _sent(name: str, args: tuple[Any, ...]) -> float:
    """Bytes that one call sends."""
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    if name == "send":
        return sum(x.nbytes for x in tensors)
    group = next(distributed.ProcessGroup.unbox(one) for one in args if type(one).__name__ == "ScriptObject")
    if name in _RINGS:
        return _RINGS[name](max(x.nbytes for x in tensors), group.size())
    _, given, _, _, shares, *_ = args  # of an all-to-all; no shares are equal ones
    kept = shares[group.rank()] / sum(shares) if shares else 1 / group.size()
    return given.nbytes * (1 - kept)
