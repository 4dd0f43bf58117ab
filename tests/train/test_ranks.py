"""Several ranks: the same run as one, faster."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from bakeoff.errors import UserError
from bakeoff.train import fit, load_run
from bakeoff.train.curve import read_curve
from bakeoff.train.folder import SHARED_FOLDER, choose_folder
from bakeoff.train.launch import COMMAND

TWO = ("trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu")


@pytest.fixture
def command(values, tmp_path):
    """Start `bakeoff fit` on the recipe without dropout, whose noise differs between ranks."""
    values["model"]["blocks"]["layer"]["dropout"] = 0.0
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))

    def start(folder, *overrides):
        words = [sys.executable, "-m", "bakeoff", "fit", str(path), *overrides, "--folder", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    return start


def finish(process):
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors


def kill_after_a_checkpoint(process, folder):
    while not any((folder / "checkpoints").glob("step-*.ckpt")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()  # returns once the other rank, which notices within seconds, has ended too
    assert process.returncode == -signal.SIGKILL


def close(one, other):
    for mine, theirs in zip(one.curve, other.curve, strict=True):
        for name in ("step", "tokens", "flops", "lr"):
            assert mine[name] == theirs[name]
        for name in ("loss", "grad_norm", "bits_per_byte", "nats_per_token"):
            assert (mine[name] is None) == (theirs[name] is None)
            if mine[name] is not None:
                assert mine[name] == pytest.approx(theirs[name], rel=2e-5)
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(value, other.model.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_are_one_process_and_continue_as_one(tiny, tmp_path, command):
    alone = fit(tiny(model__blocks__layer__dropout=0.0), folder=tmp_path / "alone", progress=False)
    finish(command(tmp_path / "two", *TWO))
    close(alone, load_run(tmp_path / "two"))
    # two ranks, killed; then one rank that takes four micro-batches a step
    process = command(tmp_path / "killed", *TWO, "data.micro_batch=1", "trainer.max_steps=400")
    kill_after_a_checkpoint(process, tmp_path / "killed")
    longer = {"trainer__max_steps": 400, "model__blocks__layer__dropout": 0.0, "data__micro_batch": 1}
    continued = fit(tiny(**longer), folder=tmp_path / "killed", progress=False)
    whole = fit(tiny(**longer), folder=tmp_path / "whole", progress=False)
    assert [row["step"] for row in continued.curve] == list(range(1, 401))
    for mine, theirs in zip(continued.curve[:20], whole.curve[:20], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_that_are_killed_continue_bit_for_bit(tmp_path, command, same_run):
    long = (*TWO, "trainer.max_steps=60", "model.blocks.layer.dropout=0.1", "checkpoint.every_steps=7")
    finish(command(tmp_path / "whole", *long))
    process = command(tmp_path / "killed", *long)
    kill_after_a_checkpoint(process, tmp_path / "killed")
    finish(command(tmp_path / "killed", *long))
    same_run(load_run(tmp_path / "whole"), load_run(tmp_path / "killed"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_agree_to_stop(tmp_path, command):
    process = command(tmp_path / "run", *TWO, "trainer.max_steps=100000", "checkpoint.every_steps=null")
    while len(read_curve(tmp_path / "run" / "curve.csv")) < 5:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "bakeoff fit --resume" in errors
    (kept,) = (tmp_path / "run" / "checkpoints").iterdir()
    last = read_curve(tmp_path / "run" / "curve.csv")[-1]["step"]
    assert kept.name == f"step-{last}.ckpt"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_several_ranks_from_python_go_through_the_command(tiny, tmp_path):
    told = []
    changes = {"trainer__devices": 2, "trainer__strategy": "ddp", "trainer__accelerator": "cpu"}
    run = fit(tiny(**changes), folder=tmp_path, progress=told.append)
    assert run.metrics["step"] == 8
    assert COMMAND not in os.environ


def test_ranks_that_are_started_by_the_first_use_its_folder(monkeypatch):
    monkeypatch.setenv(SHARED_FOLDER, "runs/tiny/1")
    assert str(choose_folder("tiny", "abc")) == os.path.join("runs", "tiny", "1")


def test_nodes_that_are_started_one_by_one_need_one_folder(tiny):
    with pytest.raises(UserError, match=r"trainer\.num_nodes is 2"):
        fit(tiny(trainer__num_nodes=2), progress=False)


def test_a_validation_over_ranks_is_that_of_one(tiny, tmp_path, monkeypatch):
    # ten windows over four ranks: each once, none repeated to fill up
    recipe = tiny(validation__tokens=10 * 16)
    run = fit(recipe, folder=tmp_path, progress=False)
    data, wanted = run.data, 17
    rows = [
        batch["tokens"][batch["real"][:, 0]] if batch["real"] is not None else batch["tokens"]
        for rank in range(4)
        for batch in data.validation(tokens_wanted=wanted, tokens=160, ranks=4, rank=rank, batch=1)
    ]
    alone = [row for batch in data.validation(tokens_wanted=wanted, tokens=160) for row in batch["tokens"].tolist()]
    spread = [row for part in rows for row in part.tolist()]
    assert len(spread) == len(alone) == 10
    assert sorted(spread) == sorted(alone)
