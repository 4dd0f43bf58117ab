"""Lightning's loop without what costs time at every hook and serves nobody here."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import lightning.pytorch as pl
from lightning.pytorch.profilers import Profiler

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


def lean(trainer: pl.Trainer) -> None:
    """Leave out the exchange at every micro-batch by which ranks learn of a SIGTERM: they agree once a step."""
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


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
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
            warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
