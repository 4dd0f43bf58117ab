"""The one callback of a run: what happens between optimizer steps."""

from __future__ import annotations

import signal
import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer import call

from bakeoff.interfaces.objective import MEAN
from bakeoff.train.checkpoint import Checkpoints
from bakeoff.train.curve import Curve, Row
from bakeoff.train.layers import Layers, Told, plain, rows_of, scalars
from bakeoff.train.means import Means, Sums
from bakeoff.train.means import rows_of as rows_of_means
from bakeoff.train.module import TrainingModule
from bakeoff.train.progress import Display, Scale, Speedometer
from bakeoff.train.stopping import StopRequested, StopSignals
from bakeoff.train.validation import Validation

#: What the tables are called in a checkpoint.
TABLES = ("curve", "layers", "means")


class Conductor(pl.Callback):
    """Records rows of the curve, validates, writes checkpoints, stops when asked, shows progress; in this order.

    One callback and not five, since each one costs at every hook of every micro-batch. The training time that it counts
    leaves out validation and the writing of checkpoints.

    Parameters
    ----------
    log_every : optimizer steps between two rows; steps that are validated have one as well.
    tables : the curve, and what layers and objective tell; None on ranks other than the first, which keep none.
    """

    def __init__(
        self,
        *,
        scale: Scale,
        log_every: int,
        validation: Validation,
        tables: tuple[Curve, Layers, Means] | None,
        checkpoints: Checkpoints,
        display: Display,
        signals: StopSignals,
    ):
        self.scale, self.log_every = scale, log_every
        self.validation, self.checkpoints = validation, checkpoints
        self.tables = tables
        self.display, self.signals = display, signals
        self.speed = Speedometer(scale, display)
        self.seconds = self.nats = self.tokens = 0.0  # training time; and sums since the last row
        self.row: Row = {}
        self.told: Told = {}  # by the layers, of the row's step
        self.sums, self.means = Sums(), dict[str, float]()  # of the objective, since the last row; those of the row
        self.written = True  # False while the latest row waits for its validation
        self.mark = 0.0

    def state_dict(self) -> dict[str, Any]:
        """What a continued run takes over."""
        sums = {"seconds": self.seconds, "nats": self.nats, "tokens": self.tokens, "sums": self.sums.held}
        tables = self.tables or (None,) * len(TABLES)
        marks = {name: table and table.mark() for name, table in zip(TABLES, tables, strict=True)}
        row = {"row": self.row, "told": self.told, "mean": self.means}
        return {**sums, **row, "written": self.written, **marks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over; `UserError` if the rows that belong to it are not those that were written."""
        held = dict(state_dict)
        marks = [held.pop(name) for name in TABLES]
        self.sums, self.means = Sums(held.pop("sums")), held.pop("mean")
        self.__dict__.update(held)
        for table, mark in zip(self.tables or (), marks, strict=False):
            table.resume(mark)

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Listen for signals; make up a validation in which the run was stopped."""
        self.signals.install()
        self.display.start(self.scale.total, pl_module.clock.step)
        self.speed.start(pl_module.clock.step, self.seconds)
        if not self.written:
            self._record(trainer, pl_module)
        self.mark = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Do what is due after an optimizer step; in the middle of one, only stop if asked."""
        if pl_module.clock.micro:
            self._stop_if_asked(trainer, pl_module)
            return
        last, step = pl_module.last, pl_module.clock.step
        self.seconds += time.perf_counter() - self.mark
        self.nats += last.nats
        self.tokens += last.tokens
        self.sums.add(last.pairs)
        if step % self.log_every == 0 or self._to_validate(step):
            self._record(trainer, pl_module)
        if self.checkpoints.due(step) or step == self.scale.total:
            pl_module.clock.doing = "saving"
            self._save(trainer, step)
            pl_module.clock.doing = "reading"
        self._stop_if_asked(trainer, pl_module, agreed=last.stop)
        self.speed.show(step, self.seconds, loss=last.nats / (last.tokens or 1.0))
        self.mark = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """A run that a callback or a time limit ends early is validated and kept as it stands."""
        step = pl_module.clock.step
        if 0 < step < self.scale.total:
            self._record(trainer, pl_module, validate=True)
            self._save(trainer, step)
        self.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Leave signals and terminal as they were."""
        self.close()

    def close(self) -> None:
        """Give signals and terminal back."""
        self.signals.remove()
        self.display.close()

    def _to_validate(self, step: int) -> bool:
        return step == self.scale.total or self.validation.due(step)

    def _record(self, trainer: pl.Trainer, module: TrainingModule, *, validate: bool = False) -> None:
        """Write the row of the step that has just ended, validated where that is due."""
        step = module.clock.step
        if self.row.get("step") != step:
            self.row, self.nats, self.tokens = self._measured(module), 0.0, 0.0
            self.told = plain(module.told)
            self.means, self.sums = self.sums.means(), Sums()
        if (validate or self._to_validate(step)) and "nats_per_token" not in self.row:
            self.written = False
            self.row |= self._validate(trainer, module)
        if self.tables is not None:
            curve, layers, means = self.tables
            curve.replace(self.row)
            layers.replace(*rows_of(self.told, step))
            means.replace(*rows_of_means(self.means, step))
        if self.checkpoints.latest == step:  # it knows the curve without this row
            self.checkpoints.latest = None
        self.written = True
        metrics = {name: float(value) for name, value in self.row.items() if value is not None and name != "step"}
        metrics |= {f"term_{name}": mean for name, mean in (module.last.means if module.last else {}).items()}
        metrics |= scalars(self.told) | self.means
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)

    def _measured(self, module: TrainingModule) -> Row:
        step, scale, last = module.clock.step, self.scale, module.last
        assert last is not None
        return {
            "step": step,
            "tokens": step * scale.tokens,
            "flops": None if scale.flops is None else step * scale.flops,
            "seconds": self.seconds,
            "loss": self.nats / self.tokens if self.tokens else None,
            "lr": float(module.trainer.optimizers[0].param_groups[0]["lr"]),
            "grad_norm": last.norm,
        }

    def _validate(self, trainer: pl.Trainer, module: TrainingModule) -> Row:
        """Measure, and let other callbacks (early stopping) see the result."""
        module.clock.doing = "validating"
        self.speed.show(module.clock.step, self.seconds, phase="validating")
        measured = self.validation.measure(trainer, module, lambda: self._stop_if_asked(trainer, module))
        measured.pop("tokens", None)
        self.speed.bits_per_byte = measured.get("bits_per_byte")
        found = [name for name in measured if name.startswith(MEAN)]
        self.means |= {f"validation.{name.removeprefix(MEAN)}": measured.pop(name) for name in found}
        trainer._logger_connector._callback_metrics.update({k: torch.tensor(v) for k, v in measured.items()})
        call._call_callback_hooks(trainer, "on_validation_end")
        module.clock.doing = "reading"
        return dict(measured)

    def _save(self, trainer: pl.Trainer, step: int) -> None:
        for table in self.tables or ():
            table.sync()
        for logger in trainer.loggers:
            logger.save()
        self.checkpoints.save(trainer, step)

    def _stop_if_asked(self, trainer: pl.Trainer, module: TrainingModule, *, agreed: bool = False) -> None:
        """Write a checkpoint and stop. Several ranks do so only where they have agreed, at the end of a step."""
        asked = self.signals.asked is not None and trainer.world_size == 1
        if not (asked or agreed):
            return
        step = module.clock.step
        module.clock.doing = "saving"
        if step:
            self._save(trainer, step)
        raise StopRequested(step, self.signals.asked or signal.SIGINT)
