"""Continuing exactly: the trainer's counters as they are after an optimizer step, and whether a recipe may continue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bakeoff.errors import UserError

#: What may differ between the run that wrote a checkpoint and the one that continues it: where and how fast it runs,
#: not what it computes. Paths into the recipe; what stands below them is free too.
FREE = (
    "name",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.accelerator",
    "trainer.strategy",
    "trainer.logger",
    "trainer.callbacks",
    "trainer.log_every_n_steps",
    "trainer.enable_progress_bar",
    "trainer.enable_model_summary",
    "trainer.profiler",
    "trainer.max_time",
    "trainer.recompute",
    "trainer.default_root_dir",
    "data.micro_batch",
    "data.workers",
    "data.cache",
    "checkpoint",
    "compile",
    "sampler",
)


def set_counters(loops: dict[str, Any], step: int, accumulation: int) -> None:
    """Make a checkpoint's loop counters say: `step` optimizer steps, `accumulation` micro-batches each, in one epoch.

    What the checkpoint says depends on the number of ranks that wrote it, and on the hook in which it was written.
    """
    fit = loops["fit_loop"]
    whole = dict.fromkeys(("ready", "completed", "started", "processed"), step * accumulation)
    batches = fit["epoch_loop.batch_progress"]
    batches["total"], batches["current"], batches["is_last_batch"] = dict(whole), dict(whole), False
    fit["epoch_loop.state_dict"]["_batches_that_stepped"] = step
    optimizer = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for counts in (optimizer["step"], optimizer["zero_grad"]):
        for span in counts.values():
            span.update(dict.fromkeys(span, step))
    inside = {"ready": 1, "completed": 0, "started": 1, "processed": 0}
    fit["epoch_progress"]["total"], fit["epoch_progress"]["current"] = dict(inside), dict(inside)


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Paths at which two recipes differ in what they compute, with both values."""
    if any(path == free or path.startswith(f"{free}.") for free in FREE):
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        inner = (differences(old.get(key), new.get(key), f"{path}.{key}".lstrip(".")) for key in keys)
        return [text for texts in inner for text in texts]
    return [] if old == new else [f"{path}: {old!r} there, {new!r} here"]


def check_same_run(old: Mapping[str, Any], new: Mapping[str, Any], folder: Any) -> None:
    """Raise `UserError` listing what differs, if the recipe `new` cannot continue the run of `old` exactly."""
    found = differences(old, new)
    if found:
        listed = "\n".join(f"  {text}" for text in found[:8]) + ("\n  …" if len(found) > 8 else "")
        raise UserError(f"{folder} holds a run of another recipe, which this one cannot continue:\n{listed}")
