"""Memory of a training step: what is live at its peak, counted tensor by tensor.

Under torch's fake tensors the step runs on shapes alone, so that a plan allocates nothing; the same count of a real
step gives the same number. Left out: what the allocator loses and what kernels use inside themselves.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from bakeoff.interfaces.neighbours import BATCHED
from bakeoff.interfaces.objective import Objective
from bakeoff.interfaces.state import nbytes, tensors
from bakeoff.model.carrying import Carried, begin
from bakeoff.model.casting import cast
from bakeoff.model.language_model import LanguageModel
from bakeoff.model.recompute import recompute_blocks
from bakeoff.parts.terms import added_gradients, weighed_apart

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Memory(NamedTuple):
    """Bytes of a training step in its steady state."""

    parameters: int
    """Buffers included."""
    gradients: int
    optimizer: int
    activations: int
    """Whatever else is live at the peak: what backward needs, and temporaries."""
    states: int = 0
    """Of lanes, before and after the step, where they go on from step to step."""

    @property
    def peak(self) -> int:
        return sum(self)


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that come into being inside it: those live `now`, the most at once, `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def note(self, values: Any) -> None:
        """Count the tensors of a nest, unless they are counted already."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor) and value.untyped_storage() not in self._known:
                storage = value.untyped_storage()
                size = storage.nbytes()
                self._known[storage] = size
                weakref.finalize(storage, self._freed, size)
                self.now += size
                self.peak = max(self.peak, self.now)

    def _freed(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result


class Searched(NamedTuple):
    """What is looked up for rows: chunks of `chunk` tokens, and `k` neighbours of each."""

    chunk: int
    k: int


def planned_memory(
    build: Callable[[], LanguageModel],
    objective: Objective,
    make_optimizer: MakeOptimizer,
    *,
    rows: int,
    length: int,
    documents: bool = False,
    searched: Searched | None = None,
    accumulate: bool = False,
    ranks: int = 1,
    carried: int = 0,
    dtype: torch.dtype | None = None,
    mixed: torch.dtype | None = None,
    recompute: str = "none",
) -> Memory:
    """`step_memory` on shapes alone, of the model that `build` builds inside, as a CPU would run it.

    Parameters
    ----------
    rows, length : of a micro-batch. documents : it holds document ids. searched : what it holds neighbours of.
    carried : micro-batches of a step, where the states of their rows go on to the next step; 0: they do not.
    dtype : the parameters' own, where it is not float32. mixed : autocast to this type.
    recompute : what of the blocks is computed anew in backward: "none", "selective" or "full".

    Raises what a part raises that looks at values (`torch._subclasses.fake_tensor.DataDependentOutputException` and
    the like): such a step cannot be planned.
    """
    with FakeTensorMode():
        model = build() if dtype is None else cast(build(), dtype)
        recompute_blocks(model.backbone, recompute)
        batch = planned_batch(objective, rows, length, documents, searched)
        context = nullcontext() if mixed is None else torch.autocast("cpu", mixed)
        return step_memory(
            model,
            objective,
            make_optimizer,
            batch,
            accumulate=accumulate,
            ranks=ranks,
            carried=carried,
            context=context,
        )


def planned_batch(
    objective: Objective, rows: int, length: int, documents: bool = False, searched: Searched | None = None
) -> dict[str, Tensor]:
    """A batch of the shapes that data gives: with document ids, and with neighbours of what is `searched` for.

    Rows hold as many chunks as they can: those of one document.
    """
    shape = (rows, objective.tokens_wanted(length))
    batch = {"tokens": torch.zeros(shape, dtype=torch.long)}
    if objective.reads_dialogues:
        batch |= {"weights": torch.ones(shape), "real": torch.ones(shape, dtype=torch.bool)}
        batch |= objective.planned(rows, length)
        documents = objective.packs
    if documents:
        batch["documents"] = torch.zeros(shape, dtype=torch.long)
    if searched is not None:
        chunk, k = searched
        last = torch.arange(chunk - 1, length, chunk).repeat(rows, 1)
        tokens = torch.zeros(*last.shape, k, 2 * chunk, dtype=torch.long)
        batch |= zip(BATCHED, (tokens, torch.ones_like(tokens, dtype=torch.bool), last), strict=True)
    return batch


def step_memory(
    model: nn.Module,
    objective: Objective,
    make_optimizer: MakeOptimizer,
    batch: Mapping[str, Tensor | None],
    *,
    accumulate: bool = False,
    ranks: int = 1,
    carried: int = 0,
    context: AbstractContextManager[Any] | None = None,
) -> Memory:
    """Bytes of one step on `batch`, forward and backward and optimizer; `accumulate`: gradients stand from before.

    Where they do, or one of several `ranks` is looked at, loss terms with weights of their own have gradients apart.
    `carried` is the number of micro-batches whose states go on, of which `batch` is one.
    Changes the model's parameters: they take a step with gradients of zero, and then one with the batch's.
    """
    objective.attach(model, 0)  # type: ignore[arg-type]
    trained = [p for part in (model, objective) for p in part.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained)
    lanes = Carried(model)
    if carried:
        lanes.states[0] = begin(model, len(batch["tokens"]))  # type: ignore[arg-type]
    with Live() as live:
        live.note([t for part in (model, objective) for t in (*part.parameters(), *part.buffers())])
        live.note([*batch.values(), *tensors(lanes.states)])
        live.note(list(optimizer.state.values()))
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        if not accumulate:
            optimizer.zero_grad(set_to_none=True)
        live.peak = live.now
        with context or nullcontext():
            terms = lanes.run(objective, batch, 0)[0] if carried else objective(model, batch)[0]
            apart = weighed_apart(terms) if accumulate or ranks > 1 else {}
            loss = sum((total for name, (total, _) in terms.items() if name not in apart), torch.zeros(()))
        kept = [
            added_gradients(total, trained, [torch.zeros_like(p) if accumulate else None for p in trained])
            for total in apart.values()
            if total.requires_grad
        ]
        loss.backward()
        del terms, apart, loss
        optimizer.step()
        del kept
    own = nbytes(lanes.states) + nbytes(lanes.after)
    held = sum(size(t) for part in (model, objective) for t in (*part.parameters(), *part.buffers()))
    gradients = sum(size(parameter) for parameter in trained)
    states = sum(size(t) for state in optimizer.state.values() for t in tree_leaves(state) if isinstance(t, Tensor))
    return Memory(held, gradients, states, live.peak - held - gradients - states - own, own * carried)


def size(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
