"""Lightning's loop without what costs time at every hook and serves nobody here."""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.profilers import Profiler
from torch import nn

_NOTHING = nullcontext()


class NoProfiler(Profiler):
    """Measures nothing, in one context that all hooks share."""

    def start(self, action_name: str) -> None:
        """Nothing."""

    def stop(self, action_name: str) -> None:
        """Nothing."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        """The shared context."""
        return _NOTHING

    def summary(self) -> str:
        """Nothing."""
        return ""


class LeanModule(pl.LightningModule):
    """A LightningModule whose batches are mappings of tensors, moved without asking who else has a say."""

    def __setattr__(self, name: str, value: Any) -> None:
        """As in nn.Module, but quick for what is no module: Lightning sets an attribute at every one of its hooks."""
        if name == "_current_fx_name":
            self.__dict__[name] = value
        elif isinstance(value, (nn.Module, nn.Parameter)):
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        return batch

    def _apply_batch_transfer_handler(
        self, batch: Mapping[str, Any], device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        where = self.device if device is None else device
        return {name: _moved(value, where) for name, value in batch.items()}


def _moved(value: Any, device: torch.device) -> Any:
    stays = value is None or (isinstance(value, torch.Tensor) and value.device == device)
    return value if stays else move_data_to_device(value, device)


def lean(trainer: pl.Trainer) -> None:
    """Leave out what Lightning does at every micro-batch and nobody needs.

    The exchange by which ranks learn of a SIGTERM: they agree once a step. The inspection of `training_step` for the
    names of its arguments. Checkpoints of its own when SLURM's time is up: a run writes its own, and the batch script
    queues the job again.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if isinstance(environment, SLURMEnvironment):
        environment.auto_requeue = False
    loop = trainer.fit_loop.epoch_loop
    loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    loop._build_kwargs = _arguments  # type: ignore[method-assign]


def _arguments(kwargs: OrderedDict[str, Any], batch: Any, batch_idx: int) -> OrderedDict[str, Any]:
    return OrderedDict(batch=batch, batch_idx=batch_idx)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Lightning's notices of a normal run (devices found, steps reached, few workers) are not shown inside."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")  # a frozen reference
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
            warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
