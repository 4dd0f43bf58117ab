"""Runs whose newest checkpoint is a folder, as several ranks write it, in the place of the file of one process."""

import os
import subprocess
import sys

import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.parallel import checkpoints
from bakeoff.parallel.checkpoints import MODEL
from bakeoff.parallel.pieces import entire
from bakeoff.train import Interrupted, conductor, fit, load_run
from bakeoff.train.checkpoint import WholeFiles
from bakeoff.train.optimizer_state import named
from bakeoff.train.saving import load_checkpoint, rest_of, steps
from safetensors.torch import load_file


@pytest.fixture
def made(tiny):
    """The recipe without dropout, whose noise differs between ranks."""
    return tiny(model__blocks__layer__dropout=0.0)


@pytest.fixture
def unfinished(made, tmp_path, monkeypatch):
    """A run of eight steps that stopped after step 4, whose checkpoint is a folder."""
    record = conductor.Conductor._record

    def stop(self, trainer, module, **options):
        record(self, trainer, module, **options)
        if module.clock.step == 5:
            raise Interrupted("stopped", 1)

    with monkeypatch.context() as patch:
        patch.setattr(conductor.Conductor, "_record", stop)
        with pytest.raises(Interrupted):
            fit(made, folder=tmp_path / "run", progress=False)
    for _, path in steps(tmp_path / "run" / "checkpoints"):
        as_folder(path, made)
    return tmp_path / "run"


def as_folder(path, recipe):
    """Write again as a folder what a file holds."""
    identity = torch.load(path, weights_only=True)["run"]
    held = load_checkpoint(path, identity)
    module = torch.nn.ModuleDict({"model": recipe.build("model", vocab_size=259)})
    tensors, plain = named(held["optimizer_states"][0], module)
    pieces = {name: entire(tensor) for name, tensor in {**held["state_dict"], **tensors}.items()}
    checkpoints.write(pieces, path, group=None, plain=rest_of(held, plain, identity))
    same(load_checkpoint(path, identity), held)


def same(one, other):
    """Two nests of plain values and tensors."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            same(mine, theirs)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_one_process_continues_from_a_folder(unfinished, made, tmp_path, same_run):
    assert [(step, path.is_dir()) for step, path in steps(unfinished / "checkpoints")] == [(2, True), (4, True)]
    continued = fit(made, folder=unfinished, progress=False)
    same_run(continued, fit(made, folder=tmp_path / "whole", progress=False))
    assert [(step, path.is_dir()) for step, path in steps(unfinished / "checkpoints")] == [(6, False), (8, False)]


def test_a_damaged_folder_is_passed_over(unfinished, made, tmp_path, same_run):
    (unfinished / "checkpoints" / "step-4.ckpt" / "__0_0.distcp").write_bytes(b"")
    continued = fit(made, folder=unfinished, progress=False)
    same_run(continued, fit(made, folder=tmp_path / "whole", progress=False))


def test_an_unfinished_run_opens_and_is_exported(unfinished, tmp_path, capsys):
    newest = unfinished / "checkpoints" / "step-4.ckpt"
    weights = load_run(unfinished).model.state_dict()
    held = checkpoints.read_whole(newest, MODEL)
    assert held.keys() == {f"{MODEL}{name}" for name in weights}
    assert all(torch.equal(held[f"{MODEL}{name}"], value) for name, value in weights.items())
    assert main(["convert", str(newest), "--folder", str(tmp_path / "one")]) == 0
    assert main(["convert", str(unfinished), "--own-names", "--folder", str(tmp_path / "other")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / name / "model.safetensors") for name in ("one", "other")]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    same(one, dict(weights))
    tied = weights.keys() - other.keys()
    assert tied == {"head.projection.weight"}
    same({**other, "head.projection.weight": other["backbone.embed.weight"]}, dict(weights))


def test_a_file_takes_the_place_of_a_folder(unfinished):
    checkpoint = unfinished / "checkpoints" / "step-4.ckpt"
    called = []
    WholeFiles(identity="x").save_checkpoint({"global_step": 4, "state_dict": {}}, checkpoint, lambda: called.append(1))
    assert called == [1]
    assert load_checkpoint(checkpoint, "x")["global_step"] == 4
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["step-2.ckpt", "step-4.ckpt"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_of_another_strategy_continue_from_a_folder(unfinished, made, tmp_path):
    changes = ("trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu")
    words = [
        sys.executable,
        "-m",
        "bakeoff",
        "fit",
        str(unfinished / "recipe.yaml"),
        "--folder",
        str(unfinished),
        *changes,
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    continued, whole = load_run(unfinished), fit(made, folder=tmp_path / "whole", progress=False)
    assert [row["step"] for row in continued.curve] == list(range(1, 9))
    for mine, theirs in zip(continued.curve, whole.curve, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
