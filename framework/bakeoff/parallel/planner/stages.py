"""A model as the planner sees it: stages in the order of the forward, and what ranks hold and do of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.cut import Cut, held
from bakeoff.interfaces.mixer import SequenceMixer
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.state import nbytes
from bakeoff.model.language_model import LanguageModel
from bakeoff.parallel.tensor import TABLE, outermost, planned, refuse_whole


class Weights(NamedTuple):
    """Elements of a stage's parameters on one tensor rank.

    Attributes
    ----------
    dense, expert : those that all expert ranks hold, and those that these share out.
    partial : of the dense ones that are trained, those that stand whole on each tensor rank inside split parts, which
        add gradients up.
    frozen_dense, frozen_expert : those of `dense` and of `expert` that are not trained, and have no gradients.
    """

    dense: int = 0
    expert: int = 0
    partial: int = 0
    frozen_dense: int = 0
    frozen_expert: int = 0

    def on(self, expert_ranks: int) -> float:
        """Elements on one of so many expert ranks."""
        return self.dense + self.expert / expert_ranks

    @property
    def trained(self) -> Weights:
        """The trained ones alone."""
        return Weights(self.dense - self.frozen_dense, self.expert - self.frozen_expert, self.partial)


@dataclass(frozen=True)
class Stage:
    """What stands before the blocks, a block, or the head.

    Attributes
    ----------
    split_flops, whole_flops : of a row's forward, in parts that tensor ranks share and outside of them.
    parts : how many such parts there are. passed : elements a token that a ring of ranks passes on.
    choices : experts that a token goes to, 0 where there are none.
    """

    name: str
    split_flops: float = 0.0
    whole_flops: float = 0.0
    parts: int = 0
    passed: float = 0.0
    choices: float = 0.0


def stages(model: LanguageModel, length: int) -> list[Stage]:
    """The stages of a model, on any device, for rows of `length` tokens."""
    blocks = [_block(f"layer {i}", block, length) for i, block in enumerate(model.backbone.layers)]
    return [Stage("embedding"), *blocks, Stage("head", split_flops=_flops(model.head, length), parts=1)]


def weights(model: LanguageModel, tensor: int) -> list[Weights]:
    """Of each stage, on the fullest of `tensor` ranks that work on each part together.

    Raises `CapabilityError` naming the parts that cannot be split, `ValueError` for sizes that do not divide.
    """
    held = _held(model, tensor) if tensor > 1 else {}
    inside = {id(p) for part in outermost(model) for p in part.parameters()}
    experts = {id(p) for owner in expert_owners(model) for p in owner.parameters(recurse=False)}
    seen: set[int] = set()

    def own(parameters: Iterable[nn.Parameter]) -> Weights:
        dense = expert = partial = frozen_dense = frozen_expert = 0
        for parameter in parameters:
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            count = held.get(id(parameter), parameter.numel())
            frozen = 0 if parameter.requires_grad else count
            if id(parameter) in experts:
                expert, frozen_expert = expert + count, frozen_expert + frozen
            else:
                dense, frozen_dense = dense + count, frozen_dense + frozen
            whole = tensor > 1 and id(parameter) in inside and id(parameter) not in held
            partial += count - frozen if whole else 0
        return Weights(dense, expert, partial, frozen_dense, frozen_expert)

    of_blocks = [own(block.parameters()) for block in model.backbone.layers]
    before = own(model.backbone.parameters())
    return [before, *of_blocks, own(model.head.parameters())]


def expert_owners(model: LanguageModel) -> Iterator[nn.Module]:
    """The modules whose parameters expert ranks share out: they know among which ranks, None as long as none do."""
    return (module for module in model.modules() if hasattr(module, "ranks"))


def experts(model: LanguageModel) -> list[int]:
    """How many experts there are, wherever there are any."""
    return sorted({len(p) for owner in expert_owners(model) for p in owner.parameters(recurse=False)})


def takes_context(model: LanguageModel) -> bool:
    """Whether ranks may share out the tokens of rows among all of its parts."""
    return model.backbone.capabilities.training.context_parallel


def kv_share(model: LanguageModel, length: int) -> float | None:
    """Key-value heads a query head, the most of any mixer that looks at all of the past; None where none does.

    From what a part declares: a visible pair takes 4 N H operations, and a token's keys and values are 2 N K elements.
    """
    shares = []
    for part in outermost(model):
        if isinstance(part, SequenceMixer):
            pair = _flops_of(part, 1, length) - _flops_of(part, 1, length - 1)
            passed = _passed(part)
            shares += [2 * passed / pair] if pair > 0 and passed else []
    return max(shares, default=None)


def _held(model: LanguageModel, tensor: int) -> dict[int, int]:
    """Elements on the first of the tensor ranks, which holds the most, of each parameter that is cut, by its id."""
    refuse_whole(model)
    backbone = model.backbone
    cuts: dict[int, tuple[Tensor, Cut]] = {id(backbone.embedding): (backbone.embedding, TABLE)}
    roots = [*outermost(model), *backbone.shared_parts]
    for owner in [module for root in roots for module in root.modules() if isinstance(module, Part)]:
        for _, module, name, cut in planned(owner, tensor):
            value = held(module, name)
            cuts.setdefault(id(value), (value, cut))
    share = {}
    for key, (value, cut) in cuts.items():
        ranges = cut.ranges(value.shape[cut.dim], tensor, 0)
        share[key] = value.numel() // value.shape[cut.dim] * sum(stop - start for start, stop in ranges)
    return share


def _block(name: str, block: nn.Module, length: int) -> Stage:
    parts = list(outermost(block))
    split = sum(_flops(part, length) for part in parts)
    whole = max(0.0, _flops(block, length) - split)
    passed = sum(_passed(part) for part in parts if isinstance(part, SequenceMixer))
    return Stage(name, split, whole, len(parts), passed, sum(_choices(module) for module in block.modules()))


def _flops(part: nn.Module, length: int) -> float:
    """Of a row's forward: as declared, else two for each parameter and token."""
    declared = _flops_of(part, length, length)
    return declared or 2.0 * length * sum(parameter.numel() for parameter in part.parameters())


def _flops_of(part: nn.Module, queries: int, keys: int) -> int:
    assert isinstance(part, Part)
    try:
        return part.flops(queries, keys) if keys else 0
    except CapabilityError:
        return 0


def _passed(mixer: SequenceMixer) -> float:
    """Elements a token of what a mixer remembers of each, as keys and values are, within its window if it has one."""
    try:
        with torch.no_grad():
            sizes = [nbytes(mixer.empty_state(1, n, torch.bfloat16, "meta")) for n in (1, 2)]
    except CapabilityError:
        return 0.0
    return (sizes[1] - sizes[0]) / torch.bfloat16.itemsize


def _choices(module: nn.Module) -> float:
    """Experts that a token goes to: of E that hold as many parameters each, those whose parameters are not idle."""
    idle = module.idle() if isinstance(module, Part) else 0
    if not idle:
        return 0.0
    first = next(module.parameters())
    return len(first) * (1 - idle / sum(parameter.numel() for parameter in module.parameters()))
