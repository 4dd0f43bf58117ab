"""What a recipe describes, built: data, model, objective, and the Lightning objects around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from bakeoff.data import Data
from bakeoff.errors import CapabilityError
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.objective import Objective
from bakeoff.model import LanguageModel
from bakeoff.model.trained import trained_count
from bakeoff.recipe import Recipe
from bakeoff.train.collecting import collector_of
from bakeoff.train.module import Clock, TrainingModule
from bakeoff.train.stopping import StopSignals
from bakeoff.train.trainer import batch_rank, batch_ranks
from bakeoff.train.workers import follow_parent


@dataclass(frozen=True)
class Assembly:
    """The parts of a run, filled with their first values."""

    recipe: Recipe
    data: Data
    model: LanguageModel
    objective: Objective
    parameters: int
    """Of the whole model."""
    trained: int
    """Those of them that are trained."""

    def flops(self) -> int | None:
        """Operations of an optimizer step, forward and backward, over all ranks; None where a part declares no cost, or
        rows are of any length."""
        if self.objective.reads_dialogues:
            return None
        try:
            forward = self.model.flops(self.data.length, self.data.length)
        except CapabilityError:
            return None
        return 3 * forward * self.data.global_batch

    def module(
        self,
        total: int,
        clock: Clock,
        signals: StopSignals,
        begun: Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> TrainingModule:
        """The model under its objective, ready for Lightning's Trainer."""
        self.objective.attach(self.model, self.recipe.seed_of("initialisation"))
        return TrainingModule(
            model=self.model,
            objective=self.objective,
            make_optimizer=self.recipe.build("optimizer"),
            schedule=self.recipe.build("schedule"),
            total=total,
            nominal=self.data.batch_tokens,
            seed=self.recipe.seed_of("dropout"),
            clock=clock,
            drawn=self.recipe.seed_of("initialisation"),
            begun=begun,
            lanes=self.data.global_batch if self.recipe.stateful else None,
            wants_stop=lambda: signals.asked is not None,
            collector=collector_of(self.recipe, self.data, self.objective),
        )


def assemble(recipe: Recipe, *, progress: bool, filled: bool = True) -> Assembly:
    """Prepare the data, build and initialise the model; unless `filled`, it stays on the meta device without values."""
    data = recipe.build("data").prepare(progress=progress).find_neighbours()
    with nullcontext() if filled else torch.device("meta"):
        model = recipe.build("model", vocab_size=data.vocab_size, max_length=data.length)
    if filled:
        model.initialise(recipe.seed_of("initialisation"))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Assembly(recipe, data, model, recipe.build("objective"), parameters, trained_count(model))


def compile_blocks(backbone: Backbone) -> None:
    """Compile each block in place, so that names in checkpoints stay what they are.

    Raises `CapabilityError` naming the layers whose parts do not claim to compile.
    """
    refused = [i for i, block in enumerate(backbone.layers) if not _claims(block)]
    if refused:
        kinds = sorted({type(backbone.layers[i]).__name__ for i in refused})
        raise CapabilityError(
            f"compile: true, but layers {', '.join(map(str, refused))} ({', '.join(kinds)}) hold parts that do not "
            "claim `compile`; set compile: false, or use parts that claim it (bakeoff show NAME)"
        )
    for block in backbone.layers:
        block.compile()


def _claims(block: nn.Module) -> bool:
    capabilities: Any = getattr(block, "capabilities", None)
    return bool(capabilities is not None and capabilities.compile)


class TrainingData(pl.LightningDataModule):
    """The training batches of this rank, from the optimizer step at which the run stands."""

    def __init__(self, assembly: Assembly, clock: Clock):
        super().__init__()
        self.assembly, self.clock = assembly, clock

    def train_dataloader(self) -> Any:
        """Micro-batches without end."""
        trainer, data = self.trainer, self.assembly.data
        assert trainer is not None
        loader = data.reading(self.assembly.objective).training(
            seed=self.assembly.recipe.seed_of("data"),
            first_step=self.clock.step,
            ranks=batch_ranks(trainer),
            rank=batch_rank(trainer),
            stateful=self.assembly.recipe.stateful,
        )
        return follow_parent(loader)
