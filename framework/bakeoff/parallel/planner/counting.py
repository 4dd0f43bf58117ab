"""Activations of the model's own blocks, counted storage by storage in one step on shapes alone.

Counted is what a CPU would keep, but for the noise of dropout: a byte an element, as an accelerator keeps it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from bakeoff.interfaces.objective import Objective
from bakeoff.model.language_model import LanguageModel
from bakeoff.model.memory import Live, MakeOptimizer, Searched, planned_batch, size
from bakeoff.model.recompute import recompute_blocks
from bakeoff.parallel.planner.memory import peak
from bakeoff.parallel.tensor import outermost


class Kept(NamedTuple):
    """Bytes of one stage of a model (what stands before the blocks, a block, or the head) for one micro-batch.

    Attributes
    ----------
    whole, split : what its forward leaves for backward: outside of the parts that tensor ranks share, and inside.
    gathered : of `whole`, what such parts are given, which each rank has all of under sequence parallelism too.
    copies : of parameters, in the type that autocast computes in.
    working : what is live besides at once, in its backward or, of the head, in its forward.
    staying : of `split`, what is there until the whole backward is over, as gradients are that a head forms in its
        forward.
    """

    whole: int = 0
    split: int = 0
    gathered: int = 0
    copies: int = 0
    working: int = 0
    staying: int = 0

    @property
    def activations(self) -> int:
        """What one device keeps, copies of parameters apart."""
        return self.whole + self.split


def step_peak(
    kept: Sequence[Kept],
    gradients: Sequence[float],
    *,
    recompute: str = "none",
    standing: float = 0.0,
    gathered: float | None = None,
) -> float:
    """The most bytes of activations, temporaries and gradients that a step over all stages has live at once.

    Parameters
    ----------
    kept, gradients : of each stage, in the order of the forward. standing : gradients that are there from before.
    gathered : of parameters, for a stage at a time, where ranks share them out; None: copies of all parameters are
        made instead, which autocast holds until the forward is over, and backward too if it recomputes nothing.
    """
    copies = sum(one.copies for one in kept) if gathered is None else 0
    copied = copies if recompute == "none" else 0
    stages = [
        (one.activations - one.staying, left, one.working + (gathered or 0))
        for one, left in zip(kept, gradients, strict=True)
    ]
    last, left, working = stages[-1]
    stages[-1] = (last, left, working + copies - copied)
    return copied + sum(one.staying for one in kept) + peak(stages[::-1], standing)


def count_blocks(
    build: Callable[[], LanguageModel],
    objective: Objective,
    layers: list[int],
    *,
    rows: int,
    length: int,
    documents: bool = False,
    searched: Searched | None = None,
    recompute: str = "none",
    dtype: torch.dtype | None = None,
    mixed: torch.dtype | None = None,
) -> list[Kept]:
    """`Kept` of what stands before the blocks, of each of the blocks `layers`, and of the head; allocates nothing.

    Parameters
    ----------
    build : the model; the blocks that are not among `layers` are left out of the step.
    rows, length : of a micro-batch. documents : it holds document ids. searched : what it holds neighbours of.
    recompute : "none", "selective" or "full".
    dtype : the parameters' own, where it is not float32. mixed : autocast to this type.
    """
    with FakeTensorMode():
        model = _reduced(build, layers, dtype)
        recompute_blocks(model.backbone, recompute)
        batch = planned_batch(objective, rows, length, documents, searched)
        context = nullcontext() if mixed is None else torch.autocast("cpu", mixed)
        return count_step(model, objective, batch, context)


def count_optimizer(
    build: Callable[[], LanguageModel], make_optimizer: MakeOptimizer, dtype: torch.dtype | None = None
) -> tuple[float, float]:
    """Bytes of states, and of what else a step of the optimizer has live at once, a byte of parameters."""
    with FakeTensorMode():
        parameters = [p for p in _reduced(build, None, dtype).parameters() if p.requires_grad]
        optimizer = make_optimizer(parameters)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        states = [t for state in optimizer.state.values() for t in tree_leaves(state) if isinstance(t, Tensor)]
        with Live() as live:
            live.note([*parameters, *[p.grad for p in parameters], *states])
            before = live.peak = live.now
            optimizer.step()
        whole = sum(map(size, parameters))
        return sum(map(size, states)) / whole, (live.peak - before) / whole


def _reduced(build: Callable[[], LanguageModel], layers: list[int] | None, dtype: torch.dtype | None) -> LanguageModel:
    """The model in a type of its own, without the blocks that are not among `layers` (None: all are)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        model = build()
    finally:
        torch.set_default_dtype(before)
    blocks = model.backbone.layers
    for i in reversed(range(len(blocks))):
        if layers is not None and i not in layers:
            del blocks[i]
    return model


def count_step(
    model: LanguageModel,
    objective: Objective,
    batch: Mapping[str, Tensor | None],
    context: AbstractContextManager[Any] | None = None,
) -> list[Kept]:
    """The same, of one step of a model on a batch; gradients stand from before. `context` is the forward's."""
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.grad = torch.zeros_like(parameter)
    watch = _Watch(model)
    with watch.live:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        watch.live.note([*model.parameters(), *model.buffers(), *gradients, *batch.values()])
        watch.pass_by()
        with context or nullcontext():
            terms = objective(model, batch)[0]
            loss = sum((total for total, _ in terms.values()), torch.zeros(()))
            del terms
            watch.leave()
        watch.turn()
        loss.backward()
        watch.lap()
    return watch.stages()


class _Copies(Live):
    """Live bytes, those of copies of parameters among them, and of casts of what the current part was given."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self._parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.given = 0
        self.copies = self.casts = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten._to_copy.default:
            source = args[0].untyped_storage()._cdata
            if source in self._parameters and result.element_size() < args[0].element_size():
                self.copies += size(result)
                weakref.finalize(result.untyped_storage(), self._dropped, size(result))
            self.casts += size(result) if source == self.given else 0
        elif func is torch.ops.aten.bernoulli_.float:
            excess = size(result) - result.numel()
            self.now -= excess
            weakref.finalize(result.untyped_storage(), self._freed, -excess)
        return result

    def _dropped(self, copied: int) -> None:
        self.copies -= copied


class _Watch:
    """Looks at what is live where the step goes from one stage to the next."""

    def __init__(self, model: LanguageModel):
        self.live = _Copies(model)
        self._marks: list[tuple[int, int]] = []  # live bytes, and those of copies, where each stage begins
        self._split: list[int] = []
        self._gathered: list[int] = []
        self._working: list[int] = []  # in backward: the head first
        self._start = 0
        self._head_forward = 0
        self._staying = 0
        self._forward = True
        for module in [*model.backbone.layers, model.head]:
            module.register_forward_pre_hook(self.enter)
            for part in outermost(module):
                part.register_forward_pre_hook(self._enter_part)
                part.register_forward_hook(self._leave_part)

    def pass_by(self) -> None:
        """A stage begins."""
        self._marks.append((self.live.now, self.live.copies))
        self._split.append(0)
        self._gathered.append(0)
        self._start = self.live.peak = self.live.now

    def enter(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        """A block, or the head, is called."""
        if self._forward:
            self.pass_by()
            if args[0].requires_grad:
                args[0].register_hook(self.lap)

    def leave(self) -> None:
        """The forward is over."""
        self._marks.append((self.live.now, self.live.copies))
        self._head_forward = self.live.peak - self.live.now
        self._forward = False

    def turn(self) -> None:
        """Backward begins; what the forward's context held is gone."""
        self._start = self.live.peak = self.live.now

    def lap(self, gradient: Tensor | None = None) -> None:
        """The backward of a stage is over, and has given this gradient of what its forward was given."""
        if not self._working:
            self._staying = self.live.now - self._marks[-2][0] - (0 if gradient is None else size(gradient))
        self._working.append(self.live.peak - self._start)
        self._start = self.live.peak = self.live.now

    def _enter_part(self, part: nn.Module, args: tuple[Any, ...]) -> None:
        if self._forward:
            self.live.given, self.live.casts = args[0].untyped_storage()._cdata, 0
            part.__dict__["entered_at"] = (self.live.now, self.live.copies)

    def _leave_part(self, part: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        if self._forward:
            now, copies = part.__dict__.pop("entered_at")
            made = self.live.now - now - (self.live.copies - copies)
            y = getattr(result, "y", args[0])  # a head keeps the gradient of what it is given
            casts, self.live.given = self.live.casts, 0
            self._split[-1] += max(0, made - size(y) - casts)
            self._gathered[-1] += casts or size(args[0])

    def stages(self) -> list[Kept]:
        """What was seen, in the order of the forward."""
        working = [*reversed(self._working)]
        working = [0] * (len(self._split) - len(working)) + working
        working[-1] = max(working[-1], self._head_forward)
        found = []
        for i, (split, gathered) in enumerate(zip(self._split, self._gathered, strict=True)):
            (now, copies), (after, copied) = self._marks[i : i + 2]
            made = copied - copies
            left = max(0, after - now - made)
            split = min(split, left)  # a block without gradients drops at its end what recomputation would have kept
            whole = left - split
            found.append(Kept(whole, split, min(whole, gathered), made, working[i]))
        found[-1] = found[-1]._replace(staying=min(max(0, self._staying), found[-1].split))
        return found
