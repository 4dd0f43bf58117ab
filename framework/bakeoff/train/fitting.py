"""`fit`: a recipe is trained, or its training continued, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.model import LanguageModel
from bakeoff.model.machine import measured_peak
from bakeoff.parts.kernels import choices
from bakeoff.parts.tensor_files import save_whole
from bakeoff.recipe import Recipe
from bakeoff.recipe.demands import refuse_foresight
from bakeoff.train.assembly import Assembly, TrainingData, assemble
from bakeoff.train.blocks import prepare_blocks
from bakeoff.train.checkpoint import Checkpoints
from bakeoff.train.conductor import Conductor
from bakeoff.train.continuing import check_recorded
from bakeoff.train.curve import Curve, read_curve
from bakeoff.train.devices import check_devices
from bakeoff.train.failures import Interrupted, is_out_of_memory, out_of_memory
from bakeoff.train.folder import SHARED_FOLDER, RunFolder, choose_folder
from bakeoff.train.job import Job, check_launched, job_of, launched_job
from bakeoff.train.launch import launched_by_command, train_in_command
from bakeoff.train.layers import Layers
from bakeoff.train.loggers import keep_rows, named_loggers
from bakeoff.train.loop import quiet_lightning
from bakeoff.train.means import Means
from bakeoff.train.module import Clock, TrainingModule
from bakeoff.train.optimizers import check_schedule
from bakeoff.train.progress import Progress, Scale, count, display_for
from bakeoff.train.records import described, identify, record, write_summary
from bakeoff.train.run import Run, load_run
from bakeoff.train.saving import load_checkpoint, steps
from bakeoff.train.stopping import StopRequested, StopSignals
from bakeoff.train.trainer import batch_ranks, build_trainer, on_mesh, ranks_of
from bakeoff.train.validation import Validation
from bakeoff.train.weights import begin, source_of


def fit(recipe: Recipe, *, folder: Path | str | None = None, progress: Progress = True, resume: bool = True) -> Run:
    """Train a recipe; the run stands in `folder`, by default `runs/<recipe>/<time>-<hash>`.

    A folder that holds an unfinished run of the same recipe continues it exactly; a finished one is only loaded. One
    process trains in a folder; a second says so, and waits.
    Ranks beyond the first are started through the `bakeoff fit` command.

    Parameters
    ----------
    progress : show a bar or lines; a callable gets dicts of numbers instead, at most a few times a second.
    resume : False refuses a folder that holds a run.

    Raises `UserError` for what does not fit, `Interrupted` after Ctrl-C (with a checkpoint), `NotFinite` for a loss or
    gradient that is not finite.
    """
    job = launched_job()
    if job is None:
        return _fit(recipe, folder, progress, resume, None)
    job.meet()
    with job.watched():
        return _fit(recipe, folder, progress, resume, job)


def _fit(recipe: Recipe, folder: Path | str | None, progress: Progress, resume: bool, job: Job | None) -> Run:
    outline = recipe.demands()
    refuse_foresight(recipe, outline)
    check_devices(recipe, outline)
    if progress is True and recipe.tree["trainer"].get("enable_progress_bar") is False:
        progress = False
    place = RunFolder(Path(folder) if folder is not None else _folder(recipe, job))
    if place.holds_work():
        if not resume:
            raise UserError(f"{place.path} holds a run already; give another folder, or let it continue")
        check_recorded(place, recipe)
    else:
        source_of(recipe)
    if place.summary.exists():
        return load_run(place.path, trust=True)
    identity = identify(place)
    names = named_loggers(recipe, recipe.name, place.path.name, identity, folders=False)
    named = recipe.override(names, "run") if names else recipe
    with quiet_lightning():
        trainer = build_trainer(named.build("trainer"), root=place.path, identity=identity)
        check_schedule(recipe.build("schedule"), trainer.max_steps)
        if job is not None:
            check_launched(job, trainer)
        elif ranks_of(trainer) > 1:
            if not launched_by_command():
                train_in_command(recipe, place, progress)
                return load_run(place.path, trust=True)
            job = job_of(trainer, described(recipe, place, code=False))
        os.environ[SHARED_FOLDER] = str(place.path.absolute())
        try:
            with _alone(place, trainer, progress) as waited:
                if job is not None and job.launched:
                    job.agree(described(recipe, place, code=job.outside))
                if job is not None and job.outside:
                    waited = job.share(str(waited)) == str(True)
                if not waited:
                    return _train(recipe, place, trainer, progress, identity, job)
            return fit(recipe, folder=place.path, progress=progress, resume=resume)
        except Interrupted:  # all ranks have agreed on it, so the first one speaks for them
            if trainer.is_global_zero:
                raise
            raise SystemExit(0) from None
        finally:
            os.environ.pop(SHARED_FOLDER, None)


def _folder(recipe: Recipe, job: Job | None) -> Path:
    """A new folder, the same on all ranks."""
    nodes = recipe.tree["trainer"].get("num_nodes") or 1
    if job is None and nodes > 1:
        raise UserError(f"trainer.num_nodes is {nodes}, and nodes that are started one by one need one folder: give it")
    chosen = choose_folder(recipe.name, recipe.hash())
    return chosen if job is None or not job.outside else Path(job.share(str(chosen)))


def _alone(place: RunFolder, trainer: pl.Trainer, progress: Progress) -> contextlib.AbstractContextManager[bool]:
    """Hold the folder for all ranks; gives whether it had to wait."""
    if not trainer.is_global_zero:
        return contextlib.nullcontext(False)
    return place.make().alone(display_for(progress).say)


def _train(
    recipe: Recipe, place: RunFolder, trainer: pl.Trainer, progress: Progress, identity: str, job: Job | None
) -> Run:
    main = trainer.is_global_zero
    display = display_for(progress, main=main)
    with _memory_told(recipe, trainer):
        assembly = assemble(recipe, progress=progress is True and main, filled=not on_mesh(trainer))
    trainer.accumulate_grad_batches = assembly.data.accumulation(batch_ranks(trainer))
    kept, wanted = recipe.tree["checkpoint"], recipe.tree["validation"]
    checkpoints = Checkpoints(place.checkpoints, every=kept["every_steps"], keep=kept["keep"])
    if main:
        place.make()
    start = checkpoints.newest(display.say)
    source = None if start else begin(assembly)
    clock, signals = Clock(start[0] if start else 0), StopSignals()
    tables = Curve(place.curve), Layers(place.layers), Means(place.means)
    if main:
        record(place, assembly, trainer, clock.step, identity, source.described() if source else None)
        keep_rows(trainer.loggers, clock.step)
        if not start:
            for table in tables:
                table.start()
        if progress is True:
            display.say(_greeting(place, assembly, trainer.max_steps, clock.step))
            chosen = choices(assembly.model, trainer.strategy.root_device)
            if chosen:
                display.say(f"kernels: {', '.join(f'{part} {choice}' for part, choice in chosen.items())}")
    module = assembly.module(trainer.max_steps, clock, signals, source.read if source else None)
    conductor = Conductor(
        scale=_scale(assembly, trainer, progress),
        log_every=trainer.log_every_n_steps,  # type: ignore[attr-defined]
        validation=Validation(
            assembly.data, every=wanted["every_steps"], tokens=wanted["tokens"], stateful=recipe.stateful
        ),
        tables=tables if main else None,
        checkpoints=checkpoints,
        display=display,
        signals=signals,
    )
    if start and start[0] >= trainer.max_steps:  # all but the last words were written
        held = load_checkpoint(start[1], identity)
        if not on_mesh(trainer):
            module.load_state_dict(held["state_dict"])
        conductor.load_state_dict(held["callbacks"][conductor.state_key])
    else:
        trainer.callbacks.append(conductor)  # type: ignore[attr-defined]
        if job is not None:
            job.follow(clock, compiles=recipe.tree["compile"])
        with contextlib.nullcontext() if job is None else job.watched():
            _run(trainer, module, assembly, start[1] if start else None, place)
    return _finished(place, assembly, trainer)


def _run(
    trainer: pl.Trainer, module: TrainingModule, assembly: Assembly, checkpoint: Path | None, place: RunFolder
) -> None:
    """Lightning's loop; what ends it early becomes one message."""
    prepare_blocks(assembly.model.backbone, assembly.recipe)
    data = TrainingData(assembly, module.clock)
    try:
        with _memory_told(assembly.recipe, trainer):
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    except StopRequested as stop:
        kept = f"stopped after step {stop.step}, which is kept" if stop.step else "stopped before the first step"
        raise Interrupted(f"{kept}; continue with: bakeoff fit --resume {place.path}", 128 + stop.number) from None
    except SystemExit:  # Lightning's answer to a second Ctrl-C
        raise Interrupted(f"stopped at once; continue with: bakeoff fit --resume {place.path}", 130) from None


@contextlib.contextmanager
def _memory_told(recipe: Recipe, trainer: pl.Trainer) -> Iterator[None]:
    """Memory that runs out inside becomes one message."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        data = recipe.build("data")
        micro, length = data.micro(ranks_of(trainer)), data.length
        raise out_of_memory(error, micro_batch=micro, precision=str(trainer.precision), length=length) from error


def _finished(place: RunFolder, assembly: Assembly, trainer: pl.Trainer) -> Run:
    """Write the final weights and the summary; the summary's presence says that the run is finished."""
    rows = read_curve(place.curve)
    last = rows[-1] if rows else {}
    metrics: dict[str, Any] = {**last, "parameters": assembly.parameters}
    if trainer.is_global_zero:
        save_whole(_weights(place, assembly.model, trainer), place.weights)
        write_summary(place, metrics)
        if on_mesh(trainer):
            return load_run(place.path, trust=True)
    return Run(place.path, assembly.recipe, assembly.model, assembly.data.tokenizer, metrics)


def _weights(place: RunFolder, model: LanguageModel, trainer: pl.Trainer) -> dict[str, Tensor]:
    """Those of the whole model; ranks of a mesh hold pieces, which its last checkpoint has together."""
    if not on_mesh(trainer):
        return model.state_dict()
    held = load_checkpoint(steps(place.checkpoints)[-1][1], identify(place))["state_dict"]
    return {name.removeprefix("model."): value for name, value in held.items() if name.startswith("model.")}


def _greeting(place: RunFolder, assembly: Assembly, total: int, step: int) -> str:
    data = assembly.data
    verb = f"continuing after step {step} of" if step else "training in"
    part = f" ({count(assembly.trained)} trained)" if assembly.trained < assembly.parameters else ""
    size = f"{count(assembly.parameters)} parameters{part}, {total} steps of {count(data.batch_tokens)} tokens"
    weights = assembly.recipe.tree["weights"]
    begun = f", from the weights of {weights}" if weights and not step else ""
    return f"{verb} {place.path}: {size}{begun}"


def _scale(assembly: Assembly, trainer: pl.Trainer, progress: Progress) -> Scale:
    peak = None
    if progress is True:
        kind = torch.bfloat16 if "bf16" in str(trainer.precision) else torch.float32
        kind = torch.float16 if str(trainer.precision).startswith("16") else kind
        peak = measured_peak(trainer.strategy.root_device, kind) * ranks_of(trainer)
    return Scale(total=trainer.max_steps, tokens=assembly.data.batch_tokens, flops=assembly.flops(), peak=peak)
