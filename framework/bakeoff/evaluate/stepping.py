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
        self.optimizer = self._optimizer()
        self.accumulation = measured.data.accumulation()
        self.tokens = measured.batch * measured.length * self.accumulation
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
        if self.carried is not None:
            self.carried.commit()

    def _terms(self, batch: Mapping[str, Tensor | None], number: int) -> Terms:
        objective = self.measured.objective
        if self.carried is None:
            return objective(self.model, batch)[0]
        return self.carried.run(objective, batch, number)[0]

    def _optimizer(self) -> torch.optim.Optimizer:
        """The recipe's, its state there from the beginning, as in the middle of a run."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = with_masters(self.measured.recipe.build("optimizer"))(trained)
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return optimizer

    def _batches(self) -> Iterator[Mapping[str, Tensor | None]]:
        data, recipe = self.measured.data, self.measured.recipe
        wanted = self.measured.objective.tokens_wanted(self.measured.length)
        seed = recipe.seed_of("data")
        for batch in data.training(tokens_wanted=wanted, seed=seed, stateful=recipe.stateful):
            yield {
                name: None if value is None else value.to(self.measured.device, non_blocking=True)
                for name, value in batch.items()
            }
