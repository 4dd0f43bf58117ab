"""Strategies that lay a run out on a mesh, by name: the kind `strategy`."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.strategy import Strategy
from bakeoff.parallel.mesh import Sizes

if TYPE_CHECKING:
    from bakeoff.model import LanguageModel
    from bakeoff.train.mesh_strategy import MeshStrategy


class OnMesh(Strategy):
    """A strategy that only says how large the mesh is.

    Parameters
    ----------
    sequence_parallel : ranks along `tensor` share out the tokens between parts.
    reshard : a block's gathered parameters are dropped after its forward, and gathered again in its backward, which
        takes less memory (ZeRO stage 3) and half as much again to send; else they stay (stage 2).
    cpu_offload : shards stand in the memory of the host, and are updated there.
    """

    carries_state = False
    context_order = "zigzag"
    context_op = "ring"

    def __init__(self, *, sequence_parallel: bool = False, reshard: bool = True, cpu_offload: bool = False):
        self.sequence_parallel, self.reshard, self.cpu_offload = sequence_parallel, reshard, cpu_offload

    @abstractmethod
    def sizes(self, *, devices: int, nodes: int) -> Sizes:
        """Ranks along each dimension; `UserError` if they do not fit so many processes."""

    def batch_ranks(self, *, devices: int, nodes: int) -> int:
        """Those along data, expert and shard."""
        return self.sizes(devices=devices, nodes=nodes).batch

    def check(self, model: LanguageModel, *, devices: int, nodes: int, length: int) -> list[str]:
        """Names of the parameters of a model, on any device, of which ranks would hold parts only.

        Raises `UserError` naming what of the model, or of what was asked for, cannot be laid out on the mesh.
        """
        from bakeoff.parallel.context import refuse_rows  # slow to import
        from bakeoff.parallel.layout import refuse_uneven, staying_whole
        from bakeoff.parallel.tensor import check_split

        sizes, cut = self._checked(devices, nodes), []
        refuse_rows(model, sizes.context, tensor=sizes.tensor, length=length, **self._sharing)
        refuse_uneven(model, sizes.expert)
        if sizes.tensor > 1:
            cut = check_split(model, sizes.tensor, sequence_parallel=self.sequence_parallel)
        if sizes.shard > 1:
            whole = staying_whole(model)
            cut += [name for name, parameter in model.named_parameters() if parameter not in whole]
        return list(dict.fromkeys(cut))

    def lightning(self, *, devices: int, nodes: int) -> MeshStrategy:
        """The strategy of Lightning that lays a model out on the mesh."""
        from bakeoff.train.mesh_strategy import MeshStrategy

        options: dict[str, Any] = {
            "sequence_parallel": self.sequence_parallel,
            "reshard": self.reshard,
            "offload": self.cpu_offload,
        }
        options |= {f"context_{name}": value for name, value in self._sharing.items()}
        return MeshStrategy(self._checked(devices, nodes), options)

    @property
    def _sharing(self) -> dict[str, str]:
        """How ranks along `context` share out rows."""
        return {"order": self.context_order, "op": self.context_op}

    def _checked(self, devices: int, nodes: int) -> Sizes:
        sizes = self.sizes(devices=devices, nodes=nodes)
        if self.sequence_parallel and sizes.tensor == 1:
            raise UserError("trainer.strategy.sequence_parallel needs ranks along tensor; the mesh has 1")
        if self.cpu_offload and sizes.shard == 1:
            raise UserError(
                "trainer.strategy.cpu_offload needs ranks along shard, whose shards it moves; the mesh has 1"
            )
        return sizes


class Grid(OnMesh):
    """Any product of dimensions; see `bakeoff.parallel.mesh.Sizes`.

    Parameters
    ----------
    data : replicas that read different rows (null: as many as the other dimensions leave).
    shard : ranks that read different rows and hold a shard of all parameters, gradients and moments each (FSDP).
    tensor : ranks that read the same rows and work on each part together.
    context : ranks that read the same rows and have some of the tokens of each.
    expert : ranks that read different rows and among which the experts of mixtures are spread.
    context_order : which tokens a rank along `context` has: "zigzag", the r-th and the r-th last of twice as many
        spans as there are ranks, so that causal attention is equally much work for all; "contiguous", one span, which
        suits windows and recurrences.
    context_op : the attention op that stands in place of `auto` where `context` is over 1.
    """

    reference = Reference(
        "Shoeybi et al.",
        2019,
        "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
        "https://arxiv.org/abs/1909.08053",
    )

    def __init__(
        self,
        *,
        data: int | None = None,
        shard: int = 1,
        tensor: int = 1,
        context: int = 1,
        expert: int = 1,
        context_order: Literal["zigzag", "contiguous"] = "zigzag",
        context_op: str = "ring",
        sequence_parallel: bool = False,
        reshard: bool = True,
        cpu_offload: bool = False,
    ):
        super().__init__(sequence_parallel=sequence_parallel, reshard=reshard, cpu_offload=cpu_offload)
        self.context_order, self.context_op = context_order, context_op
        self.data, self.others = data, {"expert": expert, "shard": shard, "context": context, "tensor": tensor}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """The rest for replicas, and every option."""
        return [{"shard": 2}, {"data": 1, "tensor": 2, "shard": 2, "sequence_parallel": True, "cpu_offload": True}]

    def sizes(self, *, devices: int, nodes: int) -> Sizes:
        """As given; `data` fills up to the number of processes."""
        others = Sizes(**self.others)
        data = max(1, devices * nodes // others.ranks) if self.data is None else self.data
        return Sizes(data=data, **self.others).check(devices, nodes)


class FullySharded(OnMesh):
    """Parameters, gradients and moments sharded over all ranks."""

    reference = Reference(
        "Rajbhandari et al.", 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", "https://arxiv.org/abs/1910.02054"
    )  # fmt: skip

    def __init__(self, *, reshard: bool = True, cpu_offload: bool = False):
        super().__init__(reshard=reshard, cpu_offload=cpu_offload)

    def sizes(self, *, devices: int, nodes: int) -> Sizes:
        """All ranks along `shard`."""
        return Sizes(shard=devices * nodes)


class HybridSharded(FullySharded):
    """Sharded over the devices of a node, and replicated over the nodes, between which less is sent then."""

    reference = Reference(
        "Zhao et al.", 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", "https://arxiv.org/abs/2304.11277"
    )  # fmt: skip

    def sizes(self, *, devices: int, nodes: int) -> Sizes:
        """Devices along `shard`, nodes along `data`."""
        return Sizes(data=nodes, shard=devices)


class TensorSplit(OnMesh):
    """The devices of a node work on each part together, and the nodes are replicas."""

    reference = Grid.reference

    def __init__(self, *, sequence_parallel: bool = False):
        super().__init__(sequence_parallel=sequence_parallel)

    def sizes(self, *, devices: int, nodes: int) -> Sizes:
        """Devices along `tensor`, nodes along `data`."""
        return Sizes(data=nodes, tensor=devices)
