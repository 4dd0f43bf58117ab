"""A run from recipe to folder and back."""

import csv
import json
import math
import os
import signal
import subprocess
import sys

import bakeoff
import lightning.pytorch as pl
import pytest
import torch
import yaml
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.train import Interrupted, NotFinite, fit, fitting
from bakeoff.train.module import TrainingModule


def test_a_run_leaves_all_that_is_needed_to_read_and_repeat_it(tiny, tmp_path):
    run = fit(tiny(), folder=tmp_path / "run", progress=False)
    names = {path.name for path in run.folder.iterdir()}
    assert names == {"recipe.yaml", "meta.json", "curve.csv", "summary.json", "model.pt", "tokenizer", "checkpoints"}
    assert [path.name for path in sorted((run.folder / "checkpoints").iterdir())] == ["step-6.ckpt", "step-8.ckpt"]
    rows = list(csv.DictReader((run.folder / "curve.csv").open()))
    assert [int(row["step"]) for row in rows] == list(range(1, 9))
    assert [bool(row["bits_per_byte"]) for row in rows] == [False, False, False, True] * 2
    assert [int(row["tokens"]) for row in rows] == [64 * step for step in range(1, 9)]
    assert run.metrics["bits_per_byte"] == float(rows[-1]["bits_per_byte"])
    meta = json.loads((run.folder / "meta.json").read_text())
    assert meta["components"]["attention"]["package"] == "bakeoff"
    assert meta["seeds"]["dropout"] == tiny().seed_of("dropout")
    assert meta["starts"][0]["versions"]["torch"] == torch.__version__
    again = bakeoff.recipe(run.folder / "recipe.yaml")
    assert again.full == tiny().full


def test_the_loss_starts_near_the_entropy_of_a_uniform_guess(tiny, tmp_path):
    run = fit(tiny(trainer__max_steps=1), folder=tmp_path / "run", progress=False)
    # logits of variance 1 at most, since embeddings are unit vectors and the last norm gives unit values
    assert math.log(259) < run.curve[0]["loss"] < math.log(259) + 0.6


def test_flops_are_three_forwards_of_every_row(tiny, tmp_path):
    run = fit(tiny(trainer__max_steps=2), folder=tmp_path / "run", progress=False)
    assert run.curve[-1]["flops"] == 2 * 4 * 3 * run.model.flops(16, 16)


def test_the_same_recipe_twice_is_two_runs(tiny, tmp_path, monkeypatch, same_run):
    monkeypatch.chdir(tmp_path)
    first, second = (fit(tiny(), progress=False) for _ in range(2))
    assert first.folder != second.folder
    assert first.folder.parent == second.folder.parent
    assert all((run.folder / "recipe.yaml").exists() for run in (first, second))
    same_run(first, second)


def test_a_finished_run_is_loaded_and_not_trained_again(tiny, tmp_path):
    first = fit(tiny(), folder=tmp_path, progress=False)
    written = first.folder / "model.pt"
    before = written.stat().st_mtime_ns
    again = fit(tiny(), folder=tmp_path, progress=False)
    assert written.stat().st_mtime_ns == before
    assert again.metrics == first.metrics
    with pytest.raises(UserError, match="holds a run already"):
        fit(tiny(), folder=tmp_path, progress=False, resume=False)


def test_another_recipe_does_not_continue_a_run(tiny, tmp_path):
    fit(tiny(), folder=tmp_path, progress=False)
    with pytest.raises(UserError, match=r"optimizer\.init_args\.lr: 0\.01 there, 0\.02 here"):
        fit(tiny(optimizer__lr=2e-2), folder=tmp_path, progress=False)
    assert fit(tiny(data__micro_batch=4, checkpoint__keep=1), folder=tmp_path, progress=False).metrics["step"] == 8


def test_a_run_that_never_began_gives_way_to_a_better_recipe(tiny, tmp_path):
    with pytest.raises(UserError, match="Invalid learning rate: -1"):
        fit(tiny(optimizer__lr=-1.0), folder=tmp_path, progress=False)
    run = fit(tiny(), folder=tmp_path, progress=False)
    assert bakeoff.recipe(tmp_path / "recipe.yaml").full == tiny().full
    assert run.metrics["step"] == 8


def test_numbers_for_a_program(tiny, tmp_path):
    told = []
    fit(tiny(), folder=tmp_path, progress=told.append)
    assert told[-1]["step"] == told[-1]["total"] == 8
    assert told[-1]["tokens_per_second"] > 0
    assert told[-1]["bits_per_byte"] is not None


def test_bf16_trains_and_scaled_half_precision_on_a_cpu_is_refused(tiny, tmp_path):
    run = fit(tiny(trainer__precision="bf16-mixed"), folder=tmp_path / "bf16", progress=False)
    assert run.curve[-1]["loss"] < run.curve[0]["loss"]
    assert all(value.dtype == torch.float32 for value in run.model.state_dict().values() if value.is_floating_point())
    with pytest.raises(UserError, match="bf16-mixed"):
        fit(tiny(trainer__precision="16-mixed", trainer__accelerator="cpu"), folder=tmp_path / "half", progress=False)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"trainer__max_steps": -1}, r"trainer\.max_steps"),
        ({"trainer__num_sanity_val_steps": 2}, "num_sanity_val_steps"),
        ({"schedule__warmup": 20}, "20 steps, but the run has only 8"),
        ({"data__micro_batch": 3}, "micro_batch is 3"),
    ],
)
def test_what_does_not_fit_is_one_message(tiny, tmp_path, overrides, words):
    with pytest.raises(UserError, match=words):
        fit(tiny(**overrides), folder=tmp_path, progress=False)


def test_an_infinite_gradient_stops_before_the_step_with_step_and_name(tiny, tmp_path, monkeypatch):
    backward = TrainingModule.backward

    def poisoned(self, loss):
        backward(self, loss)
        if self.clock.step == 2:
            self.model.backbone.layers[1].mixer.get_parameter(name).grad.view(-1)[0] = math.inf

    recipe = tiny()
    name = next(
        iter(dict(recipe.build("model", vocab_size=259, max_length=16).backbone.layers[1].mixer.named_parameters()))
    )
    monkeypatch.setattr(TrainingModule, "backward", poisoned)
    with pytest.raises(
        NotFinite, match=rf"before optimizer step 3: gradient of model\.backbone\.blocks\.1\.mixer\.{name}"
    ):
        fit(recipe, folder=tmp_path, progress=False)
    kept = torch.load(tmp_path / "checkpoints" / "step-2.ckpt", weights_only=True)
    assert all(bool(value.isfinite().all()) for value in kept["state_dict"].values())


def test_a_loss_that_is_no_number_is_named(tiny, tmp_path, monkeypatch):
    from bakeoff.parts.causal import Causal

    forward = Causal.forward

    def poisoned(self, model, batch):
        terms, statistics = forward(self, model, batch)
        value, weight = terms["loss"]
        return {"loss": (value * math.nan, weight)}, statistics

    monkeypatch.setattr(Causal, "forward", poisoned)
    with pytest.raises(NotFinite, match="before optimizer step 1: loss term loss is nan"):
        fit(tiny(), folder=tmp_path, progress=False)


def test_memory_that_runs_out_names_three_knobs_in_order(tiny, tmp_path, monkeypatch):
    from bakeoff.parts.causal import Causal

    def greedy(self, model, batch):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(Causal, "forward", greedy)
    with pytest.raises(UserError) as caught:
        fit(tiny(), folder=tmp_path, progress=False)
    places = [str(caught.value).index(knob) for knob in ("data.micro_batch=1", "trainer.precision", "data.length")]
    assert places == sorted(places)


def test_a_lossy_tokenizer_gives_nats_and_no_bits(tiny, tmp_path, monkeypatch):
    from bakeoff.parts.tokenizers.byte import ByteTokenizer

    monkeypatch.setattr(ByteTokenizer, "lossless", False)
    run = fit(tiny(), folder=tmp_path, progress=False)
    assert run.curve[-1]["bits_per_byte"] is None
    assert run.curve[-1]["nats_per_token"] > 0


def test_a_logger_gets_what_the_curve_holds(tiny, tmp_path):
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path / "logs")}}
    run = fit(tiny(trainer__logger=logger), folder=tmp_path / "run", progress=False)
    (written,) = (tmp_path / "logs").rglob("metrics.csv")
    rows = list(csv.DictReader(written.open()))
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in run.curve]


def test_early_stopping_sees_the_validation(tiny, tmp_path):
    stop = {
        "class_path": "lightning.pytorch.callbacks.EarlyStopping",
        "init_args": {"monitor": "bits_per_byte", "patience": 1, "min_delta": 100.0},
    }
    run = fit(
        tiny(trainer__max_steps=40, validation__every_steps=2, trainer__callbacks=[stop]),
        folder=tmp_path,
        progress=False,
    )
    assert run.metrics["step"] == 4
    assert run.metrics["bits_per_byte"] > 0


def test_the_command_line(values, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    words = [
        sys.executable,
        "-m",
        "bakeoff",
        "fit",
        str(path),
        "trainer.max_steps=2",
        "--folder",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == str(tmp_path / "run")
    assert "step 2/2" in done.stderr


def test_a_value_that_cannot_be_is_exit_code_2(values, tmp_path, capsys, monkeypatch):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    monkeypatch.delenv("BAKEOFF_FIT_COMMAND", raising=False)
    assert main(["fit", str(path), "trainer.max_stebs=3", "--folder", str(tmp_path / "run")]) == 2
    assert "max_steps" in capsys.readouterr().err
    assert main(["fit"]) == 2
    assert "which recipe?" in capsys.readouterr().err


def test_a_run_is_continued_by_its_folder_alone(values, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BAKEOFF_FIT_COMMAND", "1")
    path, folder = tmp_path / "tiny.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(values))
    step = TrainingModule.training_step

    def asking(self, batch, batch_idx):
        if self.clock.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingModule, "training_step", asking)
        assert main(["fit", str(path), "--folder", str(folder)]) == 130
    assert f"continue with: bakeoff fit --resume {folder}" in capsys.readouterr().err
    assert main(["fit", "--resume", str(folder)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{folder}\n"
    assert "continuing after step 5 of" in told.err
    assert main(["fit", "--resume", str(tmp_path / "nowhere")]) == 2
    assert "is no run" in capsys.readouterr().err
    assert main(["fit", "--resume", str(folder), "--folder", str(folder)]) == 2


def test_the_first_rank_speaks_for_all(tiny, tmp_path, monkeypatch):
    def stopped(*_):
        raise Interrupted("the same on all ranks", 1)

    monkeypatch.setattr(fitting, "_train", stopped)
    with pytest.raises(Interrupted):
        fit(tiny(), folder=tmp_path, progress=False)
    monkeypatch.setattr(pl.Trainer, "is_global_zero", False)
    with pytest.raises(SystemExit) as caught:
        fit(tiny(), folder=tmp_path, progress=False)
    assert caught.value.code == 0
