"""What a recipe will cost, before anything is built: `bakeoff plan`, and the memory estimate of `bakeoff check`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bakeoff.data import Data
from bakeoff.evaluate.precision import PRECISIONS, precision_of
from bakeoff.interfaces.part import Part
from bakeoff.model.cost import Plan, plan
from bakeoff.model.memory import Memory, Searched, planned_memory
from bakeoff.model.recompute import recomputed_flops
from bakeoff.model.trained import trained_count
from bakeoff.recipe import Recipe
from bakeoff.recipe.demands import outlined
from bakeoff.train.master_weights import with_masters


@dataclass(frozen=True)
class RecipePlan:
    """The cost of a recipe's model, and of training it as the recipe says.

    Attributes
    ----------
    model : per token and per row. vocabulary : ids. trained : parameters that are trained.
    rows, accumulation, ranks : of a micro-batch, micro-batches a step, and devices.
    forwards : passes without gradients for each that is trained on. dialogues : rows may be shorter than `length`.
    memory : of a training step on one device, or None where a part looks at values. steps : the budget, or None.
    recompute : what is computed anew in backward, and `recomputed`, the operations that this adds a token, or None.
    notes : what could not be told, and why.
    """

    model: Plan
    vocabulary: int
    trained: int
    rows: int
    accumulation: int
    ranks: int
    step_tokens: int
    steps: int | None
    forwards: float
    dialogues: bool
    memory: Memory | None
    recompute: str
    recomputed: float | None
    notes: tuple[str, ...]

    @property
    def training_flops(self) -> float | None:
        """Operations a training token."""
        return self.model.training_flops_with(self.forwards)

    @property
    def total_flops(self) -> float | None:
        """Operations of the whole run."""
        each = self.training_flops
        return None if each is None or self.steps is None else each * self.steps * self.step_tokens


def plan_recipe(recipe: Recipe, length: int | None = None) -> RecipePlan:
    """Plan a recipe at `length` (that of its data unless given).

    Where the tokenizer learns how many ids it has, the data are prepared first.
    """
    recipe.check()
    data: Data = recipe.build("data")
    vocabulary = vocabulary_size(recipe, data)
    model = outlined(recipe, vocabulary, max_length=data.length)
    costs = plan(model, length or data.length)
    trainer = recipe.tree["trainer"]
    ranks = _ranks(trainer)
    notes = list(costs.notes)
    memory = _memory(recipe, data, vocabulary, ranks, notes)
    steps, objective = trainer.get("max_steps"), recipe.build("objective")
    return RecipePlan(
        model=costs,
        vocabulary=vocabulary,
        trained=trained_count(model),
        rows=data.micro(ranks),
        accumulation=data.accumulation(ranks),
        ranks=ranks,
        step_tokens=data.batch_tokens,
        steps=steps if steps and steps > 0 else None,
        forwards=objective.forwards(),
        dialogues=objective.reads_dialogues,
        memory=memory,
        recompute=recipe.recompute,
        recomputed=None if costs.whole.flops is None else recomputed_flops(model, costs.length, recipe.recompute),
        notes=tuple(notes),
    )


def vocabulary_size(recipe: Recipe, data: Data) -> int:
    """How many ids the recipe's tokenizer has; for one that learns how many, the data are prepared first."""
    asked = recipe.tree["data"]["tokenizer"]
    takes_size = "vocab_size" in inspect.signature(type(data.tokenizer)).parameters
    if not takes_size or asked.get("vocab_size") is not None:
        return data.vocab_size
    return data.prepare().vocab_size


def searched(data: Data) -> Searched | None:
    """What the data look up for their rows."""
    asked = data.retrieval
    return None if asked is None else Searched(asked.chunk, asked.k)


def _ranks(trainer: Mapping[str, Any]) -> int:
    devices = trainer.get("devices")
    return (devices if isinstance(devices, int) and devices > 0 else 1) * (trainer.get("num_nodes") or 1)


def _memory(recipe: Recipe, data: Data, vocabulary: int, ranks: int, notes: list[str]) -> Memory | None:
    """Of a training step; rows of several documents where that can be told, else of one. Adds to the notes."""
    precision = precision_of(recipe)
    if precision not in PRECISIONS:
        notes.append(f"training memory is not planned for trainer.precision {precision}")
        return None
    if recipe.fp8:
        notes.append("training memory is that of products in bfloat16: what trainer.fp8 keeps in float8 is not planned")
    own, mixed = PRECISIONS[precision]
    accumulation = data.accumulation(ranks)
    asked = partial(
        planned_memory,
        partial(recipe.build, "model", vocab_size=vocabulary, max_length=data.length),
        recipe.build("objective"),
        with_masters(recipe.build("optimizer")),
        rows=data.micro(ranks),
        length=data.length,
        searched=searched(data),
        accumulate=accumulation > 1,
        ranks=ranks,
        carried=accumulation if recipe.stateful else 0,
        dtype=own,
        mixed=mixed,
        recompute=recipe.recompute,
    )
    fault = ""
    for documents in (True, False) if data.isolate_documents else (False,):
        try:
            memory = asked(documents=documents)
        except Exception as error:  # whatever a part of anybody's may raise when it is run on shapes alone
            fault = fault or f"{_part_in(error)} cannot run on shapes alone ({type(error).__name__}: {error})"
        else:
            if fault:
                notes.append(f"training memory is that of rows of one document; with several, {fault}")
            return memory
    notes.append(f"training memory is not known: {fault}")
    return None


def _part_in(error: BaseException) -> str:
    """The class of the innermost part that an error went through."""
    name, step = "the objective", error.__traceback__
    while step is not None:
        holder = step.tb_frame.f_locals.get("self")
        name = type(holder).__name__ if isinstance(holder, Part) else name
        step = step.tb_next
    return name
