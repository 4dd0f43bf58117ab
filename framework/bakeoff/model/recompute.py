"""Blocks of which backward computes anew what it needs, where keeping it would take too much memory."""

from __future__ import annotations

from collections import defaultdict
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from bakeoff.interfaces.attention_op import AttentionOp
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.block import Block
from bakeoff.interfaces.mixer import SequenceMixer
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.model.language_model import LanguageModel
from bakeoff.parts.adapted_products import Switch
from bakeoff.parts.adapters import switched, switches_of
from bakeoff.parts.linear import linear_flops

#: `trainer.recompute`: nothing; all but products, attention and scans; all.
MODES = ("none", "selective", "full")

aten = torch.ops.aten
#: Products whose results `selective` keeps.
_PRODUCTS = {aten.mm.default, aten.addmm.default, torch.ops.mkldnn._linear_pointwise.default}
_PRODUCTS |= {op.default for op in (getattr(aten, "_grouped_mm", None), getattr(aten, "_scaled_mm", None)) if op}
#: Fused attention -> the place of its dropout among the arguments.
_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    aten._scaled_dot_product_flash_attention.default: 3,
    aten._scaled_dot_product_efficient_attention.default: 5,
    aten._scaled_dot_product_cudnn_attention.default: 5,
}


def recompute_blocks(backbone: Backbone, mode: str) -> None:
    """Make each block's forward one of which backward keeps only what `mode` says, in place; names stay as they are.

    "full" (Chen et al., 2016, arXiv:1604.06174) keeps what a block is given; "selective" also the results of products
    with weights, of fused attention without dropout, and of operators that are a part's own, such as scans: what is
    dear to compute and small beside what stands between (after Korthikanti et al., 2022, arXiv:2205.05198). Losses and
    gradients are those of "none", bit for bit: noise is drawn again from the same generator state.

    Raises `ValueError` for a mode that there is not.
    """
    for block in backbone.layers:
        recompute(block, mode)


def recompute(part: nn.Module, mode: str) -> None:
    """The same for one part, called with `(x, sequence, state)`."""
    if mode not in MODES:
        raise ValueError(f"recompute is {mode!r}; it must be one of {', '.join(MODES)}")
    part.__dict__.pop("forward", None)
    if mode != "none":
        part.forward = partial(_anew, part, mode, switches_of(part))


def recomputed_flops(model: LanguageModel, length: int, mode: str) -> float:
    """Operations that backward does anew, a token of a row of `length`; what MFU is by does not count them.

    By what the parts declare: of "full", all of the blocks; of "selective", the blocks without their linear layers and
    with attention as one fused operator. Backward stops at the last thing that it needs, so this is the most.

    Raises `CapabilityError` where a part declares no cost.
    """
    if mode == "none":
        return 0.0
    blocks = cast(list[Block], list(model.backbone.layers))
    work = sum(block.flops(length, length) for block in blocks)
    return (work - (sum(_kept_flops(block, length) for block in blocks) if mode == "selective" else 0)) / length


def _kept_flops(block: Block, length: int) -> int:
    """Of products with weights, and of all of attention."""
    attending = [m for m in block.modules() if isinstance(m, SequenceMixer) and _attends(m)]
    inside = {layer for mixer in attending for layer in mixer.modules()}
    layers = [layer for layer in block.modules() if isinstance(layer, nn.Linear) and layer not in inside]
    return sum(linear_flops(layer, length) for layer in layers) + sum(m.flops(length, length) for m in attending)


def _attends(mixer: nn.Module) -> bool:
    return any(isinstance(part, AttentionOp) for part in mixer.children())


def keeps(op: OpOverload, args: Any = ()) -> bool:
    """Whether "selective" keeps what an operator returns; one that draws noise draws it anew, for those after it."""
    if not _is_dear(op):
        return False
    place = _ATTENTION.get(op, len(args))
    return len(args) <= place or not args[place]


@cache
def _is_dear(op: OpOverload) -> bool:
    return op in _PRODUCTS or op in _ATTENTION or op.namespace.startswith("bakeoff")


def _anew(
    part: nn.Module, mode: str, switches: list[Switch], x: Tensor, sequence: Sequence, state: Any = None
) -> Result:
    """The part's forward, run anew in backward, with its adapters or without as now."""
    forward: Any = partial(type(part).forward, part)
    if switches and not torch.compiler.is_compiling():
        forward = switched(switches, [switch.on for switch in switches])(forward)
    if not torch.is_grad_enabled():
        return forward(x, sequence, state)
    given = x, sequence.as_seen(), state
    if mode == "full":
        return checkpoint(forward, *given, use_reentrant=False)
    contexts = partial(create_selective_checkpoint_contexts, _policy) if torch.compiler.is_compiling() else _kept
    return checkpoint(forward, *given, use_reentrant=False, context_fn=contexts)


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """`keeps` as the compiler asks for it."""
    kept = isinstance(op, OpOverload) and keeps(op, args)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _kept() -> tuple[Keeping, Giving]:
    keeping = Keeping()
    return keeping, Giving(keeping.results)


class Keeping(TorchDispatchMode):
    """Keeps the results of operators that `keeps` names, in the order in which each is called.

    torch's own form gives each result once, so that a graph cannot be differentiated twice, and takes no notice of
    results that are changed in place through a view; here they are computed anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[OpOverload, list[Any]] = defaultdict(list)
        self._places: dict[int, tuple[OpOverload, int]] = {}  # of results, by where their memory is

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for place, name in _written(func):
            self._forget(args[place] if place < len(args) else kwargs.get(name))
        result = func(*args, **kwargs)
        if keeps(func, args):
            results = self.results[func]
            for tensor in _tensors(result):
                self._places[tensor.untyped_storage()._cdata] = func, len(results)
            results.append(_apart(result))
        return result

    def _forget(self, values: Any) -> None:
        """Do not give a result whose memory is written to."""
        for tensor in _tensors(values):
            found = self._places.pop(tensor.untyped_storage()._cdata, None)
            if found is not None:
                self.results[found[0]][found[1]] = None


class Giving(TorchDispatchMode):
    """Gives what was kept in place of computing it."""

    def __init__(self, results: dict[OpOverload, list[Any]]):
        super().__init__()
        self.results = results
        self.given: dict[OpOverload, int] = defaultdict(int)

    def __enter__(self) -> Giving:
        self.given.clear()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if keeps(func, args):
            kept = self.results[func][self.given[func]]
            self.given[func] += 1
            if kept is not None:
                return _apart(kept)
        return func(*args, **(kwargs or {}))


@cache
def _written(op: OpOverload) -> tuple[tuple[int, str], ...]:
    """Place and name of the arguments that an operator writes to."""
    arguments = enumerate(op._schema.arguments)
    return tuple((i, given.name) for i, given in arguments if given.alias_info and given.alias_info.is_write)


def _tensors(values: Any) -> list[Tensor]:
    several = values if isinstance(values, (tuple, list)) else (values,)
    return [value for value in several if isinstance(value, Tensor)]


def _apart(values: Any) -> Any:
    """The same memory, in tensors that autograd knows nothing of."""
    if isinstance(values, (tuple, list)):
        return type(values)(_apart(value) for value in values)
    return values.detach() if isinstance(values, Tensor) else values
