"""Validation inside a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import lightning.pytorch as pl
from torch import Tensor

from bakeoff.data import Data
from bakeoff.errors import UserError
from bakeoff.model.bits import evaluate_bits, evaluate_means
from bakeoff.train.module import TrainingModule, all_add

Batch = Mapping[str, Tensor | None]


class Validation:
    """Measures the validation split every `every` optimizer steps, and at the end of the run.

    Parameters
    ----------
    every : optimizer steps between two; None: only at the end.
    tokens : about how many tokens to measure; None: the whole split.
    stateful : whether states go on from one window to the next, as in training.
    """

    def __init__(self, data: Data, *, every: int | None, tokens: int | None, stateful: bool = False):
        if every is not None and every < 1:
            raise UserError(f"validation.every_steps is {every}; it must be at least 1, or null for only at the end")
        self.data, self.every, self.tokens, self.stateful = data, every, tokens, stateful
        self.table = data.bytes_per_token if data.tokenizer.lossless else None

    def due(self, step: int) -> bool:
        """Whether to validate after optimizer step `step`, the last one aside."""
        return self.every is not None and step % self.every == 0

    def measure(self, trainer: pl.Trainer, module: TrainingModule, watch: Callable[[], None]) -> dict[str, float]:
        """`evaluate_bits` over all ranks in the run's precision, and `evaluate_means` of what reads dialogues and does
        not collect them; `watch` is called before each batch."""
        objective = module.objective
        loader = self.data.reading(objective).validation(
            tokens=self.tokens, ranks=module.batch_ranks, rank=module.batch_rank, stateful=self.stateful
        )
        loader.num_workers = 0  # to read takes less time than to start processes that read
        alike = trainer.world_size // module.batch_ranks
        add_up = None if trainer.world_size == 1 else lambda sums: all_add(sums.to(module.device), alike).cpu()
        model, learner, device = module.model, module.learner, module.device
        with trainer.precision_plugin.val_step_context():
            optional, batches = objective.reads_dialogues, _watched(loader, watch)
            found = evaluate_bits(model, learner, batches, self.table, device, add_up=add_up, optional=optional)
            if objective.reads_dialogues and not objective.collects:
                found |= evaluate_means(model, learner, _watched(loader, watch), device, add_up=add_up)
        return found


def _watched(loader: Iterable[Batch], watch: Callable[[], None]) -> Iterator[Batch]:
    for batch in loader:
        watch()
        yield batch
