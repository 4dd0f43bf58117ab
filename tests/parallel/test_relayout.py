"""A run that goes on under other layouts and other numbers of ranks, and ends where it would have ended."""

import json
import os
import shutil
import signal

import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.recipe import recipe
from bakeoff.train import Interrupted, fit, load_run
from bakeoff.train.conductor import Conductor
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def stopping(monkeypatch):
    """`stopping(step)`: until `stopping(None)`, the first process of a run is asked to stop at the end of a step.

    One process stops there; several agree on it in the next step, and stop after that.
    """
    at = []
    ended = Conductor.on_train_batch_end

    def asked(self, trainer, module, *rest):
        ended(self, trainer, module, *rest)
        if at[-1] == module.clock.step and not module.clock.micro and trainer.is_global_zero:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Conductor, "on_train_batch_end", asked)
    return at.append


def stopped(ranks):
    """The first rank says that they have stopped, and is the one whose exit code says so."""
    first, *others = ranks.wait()
    assert (first, set(others)) == (128 + signal.SIGTERM, {0}), ranks.errors
    assert len(ranks.messages) == 1


def held(folder):
    """Steps of which checkpoints are there, and whether each is a folder."""
    return {path.name: path.is_dir() for path in (folder / "checkpoints").iterdir()}


def test_a_run_changes_its_layout_three_times(made, stopping, start, on_mesh, close, tmp_path, capsys):
    path, folder = made(trainer__max_steps=9), tmp_path / "run"
    stopping(None)
    whole = fit(recipe(path), folder=tmp_path / "whole", progress=False)

    stopping(2)
    ranks = start(path, {"shard": 4}, folder)
    stopped(ranks)
    assert held(folder) == {"step-3.ckpt": True}
    unfinished = load_run(folder)
    assert [row["step"] for row in unfinished.curve] == [1, 2, 3]
    assert main(["convert", str(folder / "checkpoints" / "step-3.ckpt"), "--folder", str(tmp_path / "plain")]) == 0
    weights = load_file(tmp_path / "plain" / "model.safetensors")
    mine = unfinished.model.state_dict()
    assert weights.keys() == mine.keys()
    assert all(torch.equal(weights[name], value) for name, value in mine.items())
    assert main(["evaluate", str(folder), "--measure", "validation", "--device", "cpu"]) == 0
    measured = json.loads((folder / "evaluation.json").read_text())
    assert "bits_per_byte" in json.dumps(measured)

    stopping(4)
    ranks = start(path, {"tensor": 2}, folder)
    stopped(ranks)
    assert held(folder) == {"step-3.ckpt": True, "step-5.ckpt": True}

    stopping(6)
    with pytest.raises(Interrupted):
        fit(recipe(path), folder=folder, progress=False)
    assert held(folder) == {"step-6.ckpt": False, "step-5.ckpt": True}

    stopping(None)
    capsys.readouterr()
    run = on_mesh(path, {"data": 2, "tensor": 2}, folder=folder)
    close(run, whole)
    assert main(["evaluate", str(folder), "--measure", "validation", "--device", "cpu"]) == 0


def test_experts_change_their_layout(whole, made, stopping, start, on_mesh, close, tmp_path):
    sparse = {
        "use": "mixture_of_experts",
        "n_experts": 8,
        "expert": {"use": "gated_mlp", "width": 8},
        "router": {"use": "bias_balanced", "k": 2, "rate": 0.01},
    }
    stopping(None)
    path, one = whole(sparse)
    stopping(2)
    ranks = start(path, {"expert": 2, "shard": 2}, tmp_path / "run")
    stopped(ranks)
    stopping(None)
    close(on_mesh(path, {"data": 2, "expert": 2}, folder=tmp_path / "run"), one)


def test_rows_are_shared_out_over_other_ranks(whole, stopping, start, on_mesh, close, tmp_path):
    stopping(None)
    path, one = whole()
    stopping(2)
    stopped(start(path, {"context": 2}, tmp_path / "run"))
    assert held(tmp_path / "run") == {"step-3.ckpt": True}
    shutil.copytree(tmp_path / "run", tmp_path / "alone")
    stopping(None)
    close(on_mesh(path, {"context": 4, "context_order": "contiguous"}, folder=tmp_path / "run"), one)
    assert main(["evaluate", str(tmp_path / "run"), "--measure", "validation", "--device", "cpu"]) == 0
    close(fit(recipe(path), folder=tmp_path / "alone", progress=False), one)
