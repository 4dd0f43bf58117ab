"""Lightning's Trainer as a recipe writes it, with what bakeoff does in its own way switched off."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces.strategy import Strategy
from bakeoff.train.checkpoint import WholeFiles
from bakeoff.train.devices import devices_of
from bakeoff.train.loop import NoProfiler, lean
from bakeoff.train.mesh_strategy import MeshStrategy
from bakeoff.train.precision import own_precision

#: Always so: validation, checkpoints, progress and the order of samples are bakeoff's.
OURS: dict[str, Any] = {
    "max_epochs": -1,
    "use_distributed_sampler": False,
    "num_sanity_val_steps": 0,
    "limit_val_batches": 0,
    "val_check_interval": 1,
    "check_val_every_n_epoch": None,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
}
#: So unless the recipe says otherwise.
DEFAULTS: dict[str, Any] = {"logger": False, "enable_model_summary": False, "log_every_n_steps": 10}


def build_trainer(arguments: dict[str, Any], *, root: Any, identity: str) -> pl.Trainer:
    """The trainer of the run `identity` that lives in folder `root`.

    Raises `UserError` if the arguments give no length, or do not fit this machine or each other.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    if given.get("max_steps", -1) < 1:
        raise UserError(
            f"trainer.max_steps is {given.get('max_steps', 'not set')}: it says how many optimizer steps the run has, "
            "as in trainer.max_steps=1000"
        )
    _refuse_ours(given)
    _refuse_checkpoint_callbacks(_list(given.get("callbacks")))
    given["plugins"] = [*_list(given.get("plugins")), WholeFiles(identity=identity)]
    precision = own_precision(given.get("precision"))
    if precision is not None:
        del given["precision"]
        given["plugins"].append(precision)
    given.setdefault("profiler", NoProfiler())
    if isinstance(given.get("strategy"), Strategy):
        given["devices"] = devices = devices_of(given)
        given["strategy"] = given["strategy"].lightning(devices=devices, nodes=given.get("num_nodes", 1))
    try:
        trainer = pl.Trainer(**{**DEFAULTS, **given, **OURS}, default_root_dir=root)
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise UserError(f"trainer: {error}") from error
    _refuse_half_on_cpu(trainer, given.get("precision"))
    lean(trainer)
    return trainer


def on_mesh(trainer: pl.Trainer) -> bool:
    """Whether ranks hold pieces of the model."""
    return isinstance(trainer.strategy, MeshStrategy)


def batch_ranks(trainer: pl.Trainer) -> int:
    """How many of the processes read rows of their own."""
    sizes = getattr(trainer.strategy, "sizes", None)
    return ranks_of(trainer) if sizes is None else int(sizes.batch)


def batch_rank(trainer: pl.Trainer) -> int:
    """Which of these rows this process reads, once the ranks have met."""
    layout = getattr(trainer.strategy, "layout", None)
    return trainer.global_rank if layout is None else int(layout.mesh.batch_rank)


def ranks_of(trainer: pl.Trainer) -> int:
    """How many processes train together."""
    return trainer.num_devices * trainer.num_nodes


def check_optimizer(trainer: pl.Trainer, optimizer: Any) -> None:
    """Refuse a fused optimizer under 16-mixed with clipping: it unscales by itself, after clipping."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is not None and trainer.gradient_clip_val and getattr(optimizer, "_step_supports_amp_scaling", False):
        raise CapabilityError(
            "a fused optimizer cannot be clipped under trainer.precision 16-mixed: set optimizer.fused=false, "
            "or use trainer.precision=bf16-mixed"
        )


def _refuse_ours(given: dict[str, Any]) -> None:
    for name, value in OURS.items():
        if name in given and given[name] != value and name != "enable_progress_bar":
            raise UserError(f"trainer.{name} is {given[name]!r}, but bakeoff does this in its own way; leave it out")


def _refuse_checkpoint_callbacks(callbacks: list[Any]) -> None:
    found = [type(callback).__name__ for callback in callbacks if isinstance(callback, Checkpoint)]
    if found:
        raise UserError(f"trainer.callbacks: {found[0]} is not used; set checkpoint.every_steps and checkpoint.keep")


def _refuse_half_on_cpu(trainer: pl.Trainer, precision: Any) -> None:
    if isinstance(trainer.accelerator, CPUAccelerator) and str(precision) in ("16", "16-mixed", "16-true"):
        raise CapabilityError(
            f"trainer.precision is {precision}, but the run is on a CPU, which has no scaled half precision; "
            "use bf16-mixed or 32-true"
        )


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
