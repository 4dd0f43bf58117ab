"""Tensor parallelism: ranks that work on each part of a model together, and read the same rows.

A mixer, a feed-forward or a head has the whole of its input on each rank and computes with its share of the parameters;
its results are added up over the ranks (Shoeybi et al. 2019, arXiv:1909.08053). Between the parts the stream is alike
on all ranks or, with `sequence_parallel`, its tokens are shared out (Korthikanti et al. 2022, arXiv:2205.05198): as
much is sent, less is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.cut import Cut, Share, held
from bakeoff.interfaces.feed_forward import FeedForward
from bakeoff.interfaces.head import Head
from bakeoff.interfaces.mixer import SequenceMixer
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.result import Result
from bakeoff.model.language_model import LanguageModel
from bakeoff.parallel.dropout import refuse_dropout, share_dropout
from bakeoff.parts.adapted_products import following
from bakeoff.parts.collectives import (
    entered,
    joined_to_enter,
    own_share,
    shared,
    summed,
    summed_and_shared,
    with_gradient_of,
)
from bakeoff.parts.linear import Embedding, Linear

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: Of a vocabulary's table, each rank has the rows of some ids.
TABLE = Cut(0, uneven=True)


class Stream:
    """What runs between parts: whole on each rank of `ranks`, or its tokens shared out among them."""

    def __init__(self, ranks: DeviceMesh, *, shared_out: bool = False):
        self.ranks, self.shared_out = ranks.size(), shared_out
        self.group = ranks.get_group()
        self.length = 0  # tokens of the rows in this forward

    def begin(self, x: Tensor) -> Tensor:
        """What stands whole and alike on all ranks, (B, T, D), becomes the stream."""
        self.length = x.shape[1]
        return shared(x, 1, self.group) if self.shared_out else x

    def enter(self, x: Tensor) -> Tensor:
        """All tokens of the stream, (B, T, D), for a part that ranks work on together."""
        return joined_to_enter(x, 1, self.length, self.group) if self.shared_out else entered(x, self.group)

    def leave(self, y: Tensor) -> Tensor:
        """Ranks' results, (B, T, D), added up into the stream."""
        return summed_and_shared(y, 1, self.group) if self.shared_out else summed(y, self.group)


def split_model(model: LanguageModel, ranks: DeviceMesh, *, sequence_parallel: bool = False) -> list[nn.Parameter]:
    """Leave on each rank its share of a model, on any device; values are taken over.

    Returns the parameters that stand whole, and of whose gradients each rank computes a part: these want adding up.
    Raises `CapabilityError` naming what cannot be split, `ValueError` for sizes that do not divide.
    """
    refuse_whole(model, sequence_parallel=sequence_parallel)
    backbone, stream = model.backbone, Stream(ranks, shared_out=sequence_parallel)
    shares: dict[int, Share] = {}
    partial = [p for module in backbone.stream for p in module.parameters()] if sequence_parallel else []
    for part in [*outermost(model), *_shared_parts(backbone)]:
        share_out(part, ranks, shares)
        partial += part.parameters()
    for part in outermost(model):
        work_together(part, stream)
    embedding = _embedding(backbone)
    _cut(embedding, "weight", TABLE, ranks, shares)
    embedding.register_forward_hook(lambda _, __, x: summed(x, stream.group))
    backbone.narrow(ranks)
    if sequence_parallel:
        backbone.layers[0].register_forward_pre_hook(lambda _, args: (stream.begin(args[0]), *args[1:]))
        for module in backbone.stream:
            share_dropout(module, lambda x: own_share(x, 1, stream.group), lambda: stream.length)
    return list({id(p): p for p in partial if id(p) not in shares}.values())


def share_out(part: Part, ranks: DeviceMesh, shares: dict[int, Share] | None = None) -> None:
    """Leave on each rank its share of a part's parameters and buffers.

    `shares` remembers what is shared out by parameter, since parts may share a parameter too.
    """
    shares = {} if shares is None else shares
    inner = [module for module in part.modules() if isinstance(module, Part)]
    for owner in inner:
        for _, module, name, cut in planned(owner, ranks.size()):
            _cut(module, name, cut, ranks, shares)
    for owner in reversed(inner):
        owner.narrow(ranks)


def planned(part: Part, ranks: int) -> Iterator[tuple[str, nn.Module, str, Cut]]:
    """What a part's plan shares out, and what of adapters follows: path within it, owner, name there, and cut."""
    for path, cut in part.parallel_plan(ranks).items():
        place, _, name = path.rpartition(".")
        owner = part.get_submodule(place)
        yield path, owner, name, cut
        for more, factor in following(owner, name, cut):
            yield f"{place}.{more}.weight".lstrip("."), factor, "weight", cut


def work_together(part: nn.Module, stream: Stream) -> None:
    """Let a part that is shared out take its input from the stream, and give its result into it."""
    part.register_forward_pre_hook(lambda _, args: (stream.enter(args[0]), *args[1:]))
    if not isinstance(part, Head):  # what a head gives, all ranks have made alike

        def leave(_: nn.Module, __: Any, result: Result) -> Result:
            # Every rank has all of the sums that a part reports, and adds to the gradients of what they come from.
            aux = {name: with_gradient_of(value, 1 / stream.ranks) for name, value in result.aux.items()}
            return result._replace(y=stream.leave(result.y), aux=aux)

        part.register_forward_hook(leave)


def refuse_whole(model: LanguageModel, *, sequence_parallel: bool = False) -> None:
    """Raise `CapabilityError` naming the parts of a model that ranks cannot work on together."""
    refuse_dropout(model, "tensor")
    backbone = model.backbone
    kinds: dict[str, list[str]] = {}
    for i, block in enumerate(backbone.layers):
        parts = [part for part in outermost(block) if not part.capabilities.tensor_parallel]
        if not parts and isinstance(block, Part) and not block.capabilities.tensor_parallel:
            parts = [block]
        for part in parts:
            kinds.setdefault(type(part).__name__, []).append(str(i))
    told = [f"{name} (layers {', '.join(layers)})" for name, layers in kinds.items()]
    others: list[nn.Module] = [*_shared_parts(backbone), model.head]
    told += [type(part).__name__ for part in others if not _claims(part)]
    if not isinstance(_embedding(backbone), Embedding):
        told.append(type(backbone).__name__)
    if told:
        raise CapabilityError(
            f"a mesh with tensor over 1 splits every part, but these claim no `tensor_parallel`: {', '.join(told)}; "
            "use parts that claim it (bakeoff show NAME), or give the ranks to the mesh's data or shard"
        )
    readers = sorted({type(part).__name__ for part in model.modules() if isinstance(part, Part) and part.reads})
    if sequence_parallel and readers:
        raise CapabilityError(
            f"sequence_parallel shares out the tokens between blocks, and {', '.join(readers)} reads what earlier ones "
            "show of all tokens; set sequence_parallel: false"
        )


def check_split(model: LanguageModel, ranks: int, *, sequence_parallel: bool = False) -> list[str]:
    """Names of what `split_model` would split.

    Raises as it would, without ranks: `UserError` with the path of a part whose sizes do not divide.
    """
    refuse_whole(model, sequence_parallel=sequence_parallel)
    paths = {id(module): path for path, module in model.named_modules()}
    split = [f"{paths[id(_embedding(model.backbone))]}.weight"]
    for part in [*outermost(model), *_shared_parts(model.backbone)]:
        for owner in part.modules():
            try:
                for path, module, name, cut in planned(owner, ranks) if isinstance(owner, Part) else ():
                    cut.ranges(held(module, name).shape[cut.dim], ranks, 0)
                    split.append(f"{paths[id(owner)]}.{path}")
            except ValueError as error:
                raise UserError(f"model.{paths[id(owner)]} ({type(owner).__name__}): {error}") from error
    return split


def outermost(module: nn.Module) -> Iterator[Part]:
    """The mixers, feed-forwards and heads in a module, without those inside them; each once."""
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (SequenceMixer, FeedForward, Head)):
            yield one
        else:
            waiting.extend(one.children())


def _shared_parts(backbone: Backbone) -> list[Part]:
    """What layers share that is neither a mixer nor a feed-forward, nor holds one, and has parameters."""
    return [
        part
        for part in backbone.shared_parts
        if isinstance(part, Part) and any(True for _ in part.parameters()) and not any(True for _ in outermost(part))
    ]


def _claims(part: nn.Module) -> bool:
    return isinstance(part, Part) and part.capabilities.tensor_parallel


def _embedding(backbone: Backbone) -> nn.Module:
    """The module that holds the input embedding."""
    return next(m for m in backbone.modules() if any(p is backbone.embedding for p in m.parameters(recurse=False)))


def _cut(owner: nn.Module, name: str, cut: Cut, ranks: DeviceMesh, shares: dict[int, Share]) -> None:
    """Leave the share of one parameter or buffer, and note on its owner what it is a share of."""
    tensor = held(owner, name)
    if id(tensor) not in shares:
        size = tensor.shape[cut.dim]
        ranges = cut.ranges(size, ranks.size(), ranks.get_local_rank())
        shares[id(tensor)] = share = Share(cut.dim, size, ranges, ranks)
        tensor.data = share.of(tensor.data)
    owner.__dict__.setdefault("shares", {})[name] = shares[id(tensor)]
    if isinstance(owner, Linear):
        owner.out_features, owner.in_features = held(owner, "weight").shape
        if name == "weight" and cut.dim == 1:
            owner.summands = ranks.size()
