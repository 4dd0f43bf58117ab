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
    "alltoall_base_": traffic.all_to_all,
}


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank sends inside it, each collective done as a ring, in all and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, float] = {}

    @property
    def bytes(self) -> float:
        """In all."""
        return sum(self.by_name.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if func.namespace == "c10d" and name in _RINGS:
            group = next(distributed.ProcessGroup.unbox(one) for one in args if type(one).__name__ == "ScriptObject")
            whole = max(leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
            self.by_name[name] = self.by_name.get(name, 0.0) + _RINGS[name](whole, group.size())
        return func(*args, **(kwargs or {}))
