"""Training steps on a copy of a model, to see what they cost."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.precision import PRECISIONS, autocast, precision_of
from bakeoff.interfaces.objective import Terms
from bakeoff.model.carrying import Carried
from bakeoff.model.casting import cast
from bakeoff.train.collecting import collector_of
from bakeoff.train.master_weights import with_masters


class TrainingSteps:
    """Optimizer steps (all micro-batches forward and backward, then the update) on real batches.

    The measured model is not touched; it holds `beside` bytes, which training itself would not.
    """

    def __init__(self, measured: Measured):
        from bakeoff.train.blocks import prepare_blocks  # imports Lightning, which checks of a recipe do without

        self.measured = measured
        own = PRECISIONS.get(precision_of(measured.recipe), (torch.float32, None))[0]
        self.model = cast(copy.deepcopy(measured.model), own).train()
        self.beside = sum(tensor.nbytes for tensor in [*measured.model.parameters(), *measured.model.buffers()])
        prepare_blocks(self.model.backbone, measured.recipe)
        self.accumulation = measured.data.accumulation()
        self.tokens = measured.batch * measured.length * self.accumulation
        self.objective = measured.recipe.build("objective")
        self.objective.attach(self.model, measured.recipe.seed_of("initialisation"))
        self.optimizer = self._optimizer()
        self.collector, self.done = collector_of(measured.recipe, measured.data, self.objective), 0
        self.batches = self._batches()
        self.carried = Carried(self.model) if measured.recipe.stateful else None

    def step(self) -> None:
        """One optimizer step."""
        self.optimizer.zero_grad(set_to_none=True)
        for number in range(self.accumulation):
            with autocast(self.measured.recipe, self.measured.device):
                terms = self._terms(next(self.batches), number)
                losses = [total / weight.clamp_min(1) for total, weight in terms.values()]
            torch.stack(losses).sum().backward()
        self.optimizer.step()
        self.done += 1
        if self.carried is not None:
            self.carried.commit()

    def _terms(self, batch: Mapping[str, Tensor | None], number: int) -> Terms:
        if self.collector is not None:
            if self.collector.due(self.done):
                self.collector.collect(self.model, self.done)
            batch = self.collector.batch(batch, self.measured.device)
        if self.carried is None:
            return self.objective(self.model, batch)[0]
        return self.carried.run(self.objective, batch, number)[0]

    def _optimizer(self) -> torch.optim.Optimizer:
        """The recipe's, its state there from the beginning, as in the middle of a run."""
        both = [*self.model.parameters(), *self.objective.parameters()]
        trained = [parameter for parameter in both if parameter.requires_grad]
        optimizer = with_masters(self.measured.recipe.build("optimizer"))(trained)
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return optimizer

    def _batches(self) -> Iterator[Mapping[str, Tensor | None]]:
        data, recipe = self.measured.data, self.measured.recipe
        seed = recipe.seed_of("data")
        for batch in data.reading(self.objective).training(seed=seed, stateful=recipe.stateful):
            yield {
                name: None if value is None else value.to(self.measured.device, non_blocking=True)
                for name, value in batch.items()
            }
