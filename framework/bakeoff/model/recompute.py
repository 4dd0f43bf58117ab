"""Blocks of which backward computes anew what it needs, where keeping it would take too much memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence

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
        part.forward = partial(_anew, part, mode)  # type: ignore[assignment]


def keeps(op: OpOverload, args: Any = ()) -> bool:
    """Whether "selective" keeps what an operator returns; one that draws noise is repeated, as noise goes on from it."""
    if not _is_dear(op):
        return False
    place = _ATTENTION.get(op, len(args))
    return len(args) <= place or not args[place]


@cache
def _is_dear(op: OpOverload) -> bool:
    return op in _PRODUCTS or op in _ATTENTION or op.namespace.startswith("bakeoff")


def _anew(part: nn.Module, mode: str, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
    """The part's forward, run anew in backward."""
    forward = partial(type(part).forward, part)
    if not torch.is_grad_enabled():
        return forward(x, sequence, state)
    context = _context(mode)
    more = {} if context is None else {"context_fn": context}
    return checkpoint(forward, x, sequence.as_seen(), state, use_reentrant=False, **more)


def _context(mode: str) -> Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]] | None:
    if mode == "full":
        return None
    return partial(create_selective_checkpoint_contexts, _policy) if torch.compiler.is_compiling() else _kept


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """`keeps` as the compiler asks for it."""
    kept = isinstance(op, OpOverload) and keeps(op, args)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _kept() -> tuple[Keeping, Giving]:
    keeping = Keeping()
    return keeping, Giving(keeping.results)


class Keeping(TorchDispatchMode):
    """Keeps the results of operators that `keeps` names, in the order in which each is called.

    torch's own form gives each result once, so that a graph cannot be differentiated twice, and refuses results that
    are changed in place; here they are then computed anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[OpOverload, list[_Kept | None]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if keeps(func, args):
            self.results[func].append(_Kept(result))
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for results in self.results.values():  # what was changed in place is of no use
            results[:] = [kept if kept is not None and kept.whole else None for kept in results]


class Giving(TorchDispatchMode):
    """Gives what was kept in place of computing it."""

    def __init__(self, results: dict[OpOverload, list[_Kept | None]]):
        super().__init__()
        self.results = results
        self.given: dict[OpOverload, int] = defaultdict(int)

    def __enter__(self) -> Giving:
        self.given.clear()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if keeps(func, args):
            number = self.given[func]
            self.given[func] += 1
            kept = self.results[func][number]
            if kept is not None and kept.whole:
                return kept.again()
        return func(*args, **(kwargs or {}))


class _Kept:
    """The result of one operator: a tensor, or several things of which some are tensors."""

    def __init__(self, result: Any):
        self.single = isinstance(result, Tensor)
        self.values = [_apart(value) for value in ((result,) if self.single else result)]
        self.versions = [value._version if isinstance(value, Tensor) else 0 for value in self.values]

    @property
    def whole(self) -> bool:
        """Whether nothing was changed in place since."""
        pairs = zip(self.values, self.versions, strict=True)
        return all(value._version == version for value, version in pairs if isinstance(value, Tensor))

    def again(self) -> Any:
        """The result once more."""
        values = [_apart(value) for value in self.values]
        return values[0] if self.single else tuple(values)


def _apart(value: Any) -> Any:
    """The same memory as a tensor that autograd knows nothing of, but that tells of changes in place."""
    if not isinstance(value, Tensor):
        return value
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return value.detach()
