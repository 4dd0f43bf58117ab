"""A model on a mesh: every rank's pieces of it, from nothing to values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from bakeoff.errors import UserError
from bakeoff.interfaces.cut import local, shares_of
from bakeoff.interfaces.init import roles
from bakeoff.interfaces.objective import Objective
from bakeoff.model.language_model import LanguageModel
from bakeoff.model.spreading import spread
from bakeoff.parallel.context import refuse_rows, share_rows
from bakeoff.parallel.gradients import Leaf
from bakeoff.parallel.mesh import BATCH, Mesh
from bakeoff.parallel.pieces import Box, Piece, chunked, cut
from bakeoff.parallel.tensor import split_model


class Learner(nn.Module):
    """A model under its objective; its `forward` is all that a run calls, as what is sharded is gathered there."""

    def __init__(self, model: LanguageModel, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Mapping[str, Tensor | None], *state: Any, each: bool = False) -> Any:
        """The objective's terms and statistics of a batch; with `each`, what each token costs."""
        if each:
            return self.objective.token_losses(self.model, batch, *state)
        return self.objective(self.model, batch)

    def token_losses(self, model: LanguageModel, batch: Mapping[str, Tensor | None], *state: Any) -> Any:
        """As the objective's own, of this model."""
        assert model is self.model
        return self(batch, *state, each=True)


class Layout:
    """How a model stands on a mesh.

    Parameters
    ----------
    sequence_parallel : tensor ranks share out the tokens between parts.
    reshard : a block's parameters are dropped after its forward, and gathered again for its backward.
    offload : shards stand in the memory of the host, and are updated there.
    context_order, context_op : see `bakeoff.parallel.context.share_rows`.
    gathered : the type in which blocks' matrices are gathered (None: their own); gradients are added up in float32.
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        sequence_parallel: bool = False,
        reshard: bool = True,
        offload: bool = False,
        context_order: str = "zigzag",
        context_op: str = "ring",
        gathered: torch.dtype | None = None,
    ):
        self.mesh, self.sequence_parallel = mesh, sequence_parallel
        self.reshard, self.offload, self.gathered = reshard, offload, gathered
        self.context_order, self.context_op = context_order, context_op
        self.partial: frozenset[str] = frozenset()

    def lay_out(self, learner: Learner, device: torch.device, seed: int) -> None:
        """Leave on this rank its pieces of a model without values, and fill them as one process would fill the whole.

        Raises `UserError` or `ValueError` for what cannot be laid out so.
        """
        model, mesh = learner.model, self.mesh
        sharing = {"order": self.context_order, "op": self.context_op}
        refuse_rows(model, mesh.size("context"), tensor=mesh.size("tensor"), length=None, **sharing)
        if mesh.size("context") > 1:
            share_rows(model, mesh.along("context"), **sharing)
        partial = []
        if mesh.size("tensor") > 1:
            partial = split_model(model, mesh.along("tensor"), sequence_parallel=self.sequence_parallel)
        names = {id(parameter): name for name, parameter in learner.named_parameters()}
        self.partial = frozenset(names[id(parameter)] for parameter in partial)
        spread(model, mesh.grid)
        if mesh.size("shard") > 1:
            self._shard(learner)
        where = torch.device("cpu") if self.offload else device
        model.initialise(seed, where)
        if self.offload:
            _move_whole(learner, device)

    def _shard(self, learner: Learner) -> None:
        """Blocks by themselves, everything else together; what stays whole is added up with the other gradients."""
        whole = staying_whole(learner)
        offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if self.offload else OffloadPolicy()
        held: dict[str, Any] = {"mesh": self.mesh.along("shard"), "ignored_params": whole, "offload_policy": offload}
        policy = MixedPrecisionPolicy(
            param_dtype=self.gathered,
            reduce_dtype=None if self.gathered is None else torch.float32,
            cast_forward_inputs=False,
        )
        units: list[Any] = []
        for block in learner.model.backbone.layers:
            units.append(fully_shard(block, mp_policy=policy, reshard_after_forward=self.reshard, **held))
        units.append(fully_shard(learner, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False), **held))
        for unit in units:
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)

    def leaves(self, learner: Learner) -> Iterator[Leaf]:
        """What this rank holds of every parameter, each once, under its first name."""
        owners = dict(learner.named_modules())
        for name, parameter in learner.named_parameters():
            path, _, last = name.rpartition(".")
            owner, sharded = owners[path], is_sharded(parameter)
            own = nn.Parameter(local(parameter)[0].detach(), parameter.requires_grad) if sharded else parameter
            different = {"shard"} if sharded else set()
            if last in shares_of(owner):
                different.add("tensor")
            if is_spread(owner):
                different.add("expert")
            summed = {*BATCH, "context", *(["tensor"] if name in self.partial else [])} - different
            yield Leaf(name, parameter, own, frozenset(summed), frozenset(different))


def pieces(module: nn.Module) -> dict[str, Piece]:
    """What this rank holds of every entry of a module's state, by name."""
    owners = dict(module.named_modules())
    found = {}
    for name, tensor in module.state_dict().items():
        path, _, last = name.rpartition(".")
        found[name] = piece_of(owners[path], last, tensor)
    return found


def piece_of(owner: nn.Module, name: str, tensor: Tensor) -> Piece:
    """What this rank holds of a parameter or buffer that stands directly in a module."""
    own, start = local(tensor)
    whole: tuple[int, ...] = tuple(tensor.shape)
    share = shares_of(owner).get(name)
    boxes: tuple[Box, ...] = (Box((0,) * len(whole), (0,) * len(whole), whole),)
    if share is not None:
        whole = tuple(share.whole(tensor.shape))
        boxes = cut(whole, share.dim, share.ranges)
    if is_spread(owner):
        stack: Any = owner
        whole = (whole[0] * stack.ranks.size(), *whole[1:])
        boxes = tuple(Box((stack.first + box.whole[0], *box.whole[1:]), box.local, box.size) for box in boxes)
    if is_sharded(tensor):
        boxes = chunked(boxes, start, start + len(own))
    return Piece(torch.Size(whole), boxes, own.detach())


def is_sharded(tensor: Tensor) -> bool:
    """Whether ranks along `shard` hold rows of it."""
    return hasattr(tensor, "to_local")


def is_spread(owner: nn.Module) -> bool:
    """Whether ranks along `expert` hold other things that are stacked in the module's parameters."""
    return getattr(owner, "stacked", False) and getattr(owner, "ranks", None) is not None


def staying_whole(module: nn.Module) -> set[nn.Parameter]:
    """Parameters that are not worth sharding, or must keep their type: vectors, and what parts keep in float32."""
    kinds = roles(module)
    kept = {
        id(own)
        for part in module.modules()
        for name, own in part.named_parameters(recurse=False)
        if name in getattr(part, "keep_float32", ())
    }
    return {p for name, p in module.named_parameters() if kinds[name] == "vector" or id(p) in kept}


def refuse_uneven(model: LanguageModel, ranks: int) -> None:
    """Raise `UserError` with the path of a mixture whose experts do not divide over so many ranks."""
    for path, owner in model.named_modules():
        held = owner.parameters(recurse=False) if hasattr(owner, "ranks") else ()
        count = next((len(parameter) for parameter in held), 0)
        if count % ranks:
            raise UserError(
                f"model.{path}: its {count} experts do not divide over the mesh's {ranks} expert ranks; possible: "
                f"{', '.join(str(n) for n in range(1, count + 1) if count % n == 0)}"
            )


def _move_whole(module: nn.Module, device: torch.device) -> None:
    """Move what is not sharded to a device."""
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            if not is_sharded(parameter):
                parameter.data = parameter.data.to(device)
        for name, buffer in owner.named_buffers(recurse=False):
            owner._buffers[name] = buffer.to(device)
