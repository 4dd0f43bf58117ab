"""Recipes that extend a context: what they say is what was published, and in small the stages do what they are for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import bakeoff
import pytest
from bakeoff.evaluate import Measured
from bakeoff.evaluate.tasks.loss_by_length import LossByLength
from bakeoff.model.cost import count_parameters
from bakeoff.recipe.demands import outlined
from bakeoff.train import fit, load_run

from . import published

FOLDER = published.MODELS.parent / "long_context"
#: Of the text model (Liu et al. 2024): length, base of the rotary encoding, steps of 4 million tokens.
STAGES = {
    "32k": (2**15, 1e6, 1200),
    "128k": (2**17, 1e7, 3000),
    "256k": (2**18, 1e7, 3000),
    "512k": (2**19, 2.5e7, 720),
    "1m": (2**20, 5e7, 450),
}


@pytest.mark.parametrize("stage", STAGES)
def test_stages_of_large_world_model_are_llama_2_at_the_published_lengths_and_bases(stage):
    made = bakeoff.recipe(FOLDER / f"lwm_7b_{stage}.yaml")
    length, base, steps = STAGES[stage]
    tree = made.tree
    assert (tree["data"]["length"], tree["data"]["batch_tokens"]) == (length, 2**22)
    assert tree["model"]["blocks"]["layer"]["mixer"]["position"]["base"] == base
    assert tree["trainer"]["max_steps"] == steps
    assert tree["optimizer"]["lr"] == 4e-5
    assert tree["data"]["isolate_documents"]
    model = outlined(made, 32000, max_length=length)
    assert count_parameters(model).total == 6_738_415_616
    assert model.backbone.blocks[0].mixer_norm.eps == 1e-5
    assert model.backbone.blocks[0].mixer.position.table.base == base


def small(folder: Path) -> dict[str, object]:
    """Overrides that let a stage of the toy train in a second or a few, on the repository's own text."""
    return {
        "data.corpus": {"use": "text_files", "path": str(folder / "text.txt")},
        "data.cache": str(folder / "cache"),
        "validation": {"every_steps": None, "tokens": 1024},
    }


def test_each_stage_goes_on_from_the_run_of_the_one_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("A rose is a rose is a rose. " * 2000)
    lengths = []
    for stage in ("stage_1", "stage_2", "stage_3"):
        made = bakeoff.recipe(FOLDER / f"{stage}.yaml", {**small(tmp_path), "trainer.max_steps": 1})
        run = fit(made, folder=tmp_path / "runs" / "long_context" / stage, progress=False)
        lengths.append(made.tree["data"]["length"])
        before = json.loads((run.folder / "meta.json").read_text())["weights"]
        assert (before and Path(before["path"]).name) == {1: None, 2: "stage_1", 3: "stage_2"}[len(lengths)]
        assert len({bakeoff.recipe(FOLDER / f"stage_{n}.yaml").seed_of("data") for n in (1, 2, 3)}) == 3
    assert lengths == [128, 512, 2048]


def bakeoff_command(*words: object) -> list[str]:
    return [sys.executable, "-m", "bakeoff", *map(str, words)]


def losses(folder: Path, *lengths: int) -> dict[int, float]:
    run = load_run(folder)
    measured = Measured.of(run.model, run.data, run.recipe)
    found = LossByLength(lengths=lengths).measure(measured, lambda told: None).figures
    return {length: found[f"bits_per_byte_{length}"] for length in lengths}


@pytest.mark.slow
def test_stages_make_longer_rows_cheaper_and_a_killed_one_ends_where_it_would_have(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BAKEOFF_CACHE": str(tmp_path / "cache")}
    told = {"cwd": tmp_path, "env": environment, "check": True, "timeout": 300, "stdout": subprocess.DEVNULL}
    steps = {"stage_1": 400, "stage_2": 48, "stage_3": 24}

    def command(stage: str, folder: str) -> list[str]:
        given = f"trainer.max_steps={steps[stage]}", "checkpoint.every_steps=8", "validation={tokens: 16384}"
        return bakeoff_command("fit", FOLDER / f"{stage}.yaml", "--folder", f"runs/long_context/{folder}", *given)

    runs = tmp_path / "runs" / "long_context"
    subprocess.run(command("stage_1", "stage_1"), **told)
    subprocess.run(command("stage_2", "whole"), **told)
    killed = subprocess.Popen(command("stage_2", "stage_2"), cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 200
    while not list(runs.glob("stage_2/checkpoints/step-16.ckpt")) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(60) == -signal.SIGKILL
    assert not (runs / "stage_2" / "summary.json").exists()
    subprocess.run(bakeoff_command("fit", "--resume", "runs/long_context/stage_2"), **told)
    assert (runs / "stage_2" / "model.pt").read_bytes() == (runs / "whole" / "model.pt").read_bytes()
    subprocess.run(command("stage_3", "stage_3"), **told)
    first, second, third = (losses(runs / stage, 128, 512, 1024, 2048) for stage in steps)
    assert first[512] > first[128] + 0.3  # what was not extended ends with its length
    assert second[512] < first[512] - 0.3
    assert second[512] < second[128] + 0.05
    assert third[2048] < second[2048] - 0.3
    assert third[2048] < third[128]
