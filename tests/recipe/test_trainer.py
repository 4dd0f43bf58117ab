"""`trainer:` is Lightning's Trainer, checked without importing Lightning and built with it."""

import inspect
import subprocess
import sys

import pytest
from bakeoff.errors import RecipeError
from bakeoff.recipe import recipe
from bakeoff.recipe.trainer import DECIDED_ELSEWHERE, OWN, trainer_signature


def test_checking_imports_no_lightning(small):
    code = f"""
import sys
from bakeoff.recipe import recipe
assert "torch" not in sys.modules
recipe({str(small)!r}).check()
heavy = [m for m in ("lightning", "transformers", "torchmetrics", "datasets") if m in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_signature_is_that_of_the_class():
    from lightning.pytorch import Trainer

    parameters = dict(list(inspect.signature(Trainer.__init__).parameters.items())[1:])
    known = {name: p for name, p in trainer_signature().parameters.items() if name not in OWN}
    assert not {*OWN} & {*parameters}
    assert {*known, *DECIDED_ELSEWHERE} == set(parameters)
    assert all(known[name].default == parameters[name].default for name in known)


@pytest.mark.parametrize(
    "line",
    [
        "precision: bf16-mixed",
        "precision: 32",
        "devices: 2",
        "devices: [0, 1]",
        "devices: auto",
        "strategy: ddp",
        "gradient_clip_val: 0.5",
        "gradient_clip_val: null",
        "max_time: '00:12:00:00'",
        "max_time: {hours: 3}",
        "logger: false",
        "deterministic: warn",
        "callbacks: null",
        "profiler: simple",
    ],
)
def test_values_that_fit(extended, line):
    extended(f"trainer: {{{line}}}\n").check()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("precision: bf16-mixd", "did you mean 'bf16-mixed'"),
        ("num_nodes: '2'", "takes a whole number, not '2'"),
        ("gradient_clip: 1.0", "did you mean 'gradient_clip_val'"),
        ("deterministic: wran", "did you mean 'warn'"),
        ("logger: 3", "takes a Logger"),
        ("callbacks: [3]", "takes"),
        ("max_epochs: 3", "a run is counted in steps: set trainer.max_steps"),
        ("accumulate_grad_batches: 4", "it follows from data.batch_tokens and data.micro_batch"),
        ("val_check_interval: 4", "set validation.every_steps"),
        ("logger: {class_path: lightning.pytorch.callbacks.Timer}", "is no Logger"),
    ],
)
def test_values_that_do_not(extended, line, said):
    with pytest.raises(RecipeError, match=said):
        extended(f"trainer: {{{line}}}\n").check()


LOGGERS = """\
trainer:
  precision: 32-true
  callbacks:
    - {class_path: lightning.pytorch.callbacks.LearningRateMonitor, init_args: {logging_interval: step}}
  logger:
    - class_path: lightning.pytorch.loggers.CSVLogger
      init_args: {save_dir: logs}
"""


def test_loggers_and_callbacks_are_built_with_the_trainer_s_arguments(extended, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = extended(LOGGERS).build("trainer")
    from lightning.pytorch.callbacks import LearningRateMonitor
    from lightning.pytorch.loggers import CSVLogger

    assert {key: arguments[key] for key in ("max_steps", "precision")} == {"max_steps": 4, "precision": "32-true"}
    assert type(arguments["callbacks"][0]) is LearningRateMonitor
    assert type(arguments["logger"][0]) is CSVLogger


def test_arguments_of_loggers_are_checked(extended):
    with pytest.raises(RecipeError, match=r"trainer\.logger\.0\.sav_dir .*did you mean 'save_dir'"):
        extended(LOGGERS.replace("save_dir", "sav_dir")).check()


def test_what_a_foreign_class_takes_by_its_kwargs_is_said_apart(extended):
    node = "{class_path: lightning.pytorch.loggers.WandbLogger, init_args: {entity: me}}"
    with pytest.raises(RecipeError, match="what its \\*\\*kwargs take goes into dict_kwargs"):
        extended(f"trainer: {{logger: {node}}}\n").check()
    node = "{class_path: lightning.pytorch.loggers.WandbLogger, init_args: {offline: true}, dict_kwargs: {entity: me}}"
    made = extended(f"trainer: {{logger: {node}}}\n")
    assert made.tree["trainer"]["logger"]["dict_kwargs"] == {"entity": "me"}
    assert recipe(made.saved()).full["trainer"] == made.full["trainer"]


def test_what_kwargs_are_passed_on_to_is_known(extended):
    node = "{class_path: lightning.pytorch.strategies.DDPStrategy, init_args: {find_unused_parameters: true}}"
    made = extended(f"trainer: {{strategy: {node}}}\n")
    assert made.build("trainer")["strategy"]._ddp_kwargs == {"find_unused_parameters": True}
    assert recipe(made.saved()).full == made.full
    with pytest.raises(RecipeError, match="did you mean 'find_unused_parameters'"):
        made.override(["trainer.strategy.find_unused_parametres=true"]).check()


def test_half_precision_on_a_cpu_and_with_fused_clipping_is_refused(small):
    half = recipe(small, ["trainer.precision=16-mixed"])
    with pytest.raises(RecipeError, match="would silently run as bf16-mixed"):
        half.override(["trainer.accelerator=cpu"]).demands()
    fused = half.override(["trainer.accelerator=gpu", "optimizer.fused=true", "trainer.gradient_clip_val=1.0"])
    with pytest.raises(RecipeError, match="would clip scaled ones"):
        fused.demands()
    fused.override(["optimizer.fused=false"]).demands()
