"""A trained decoder that learns to read what is retrieved: it begins as it was, and only what is new is trained."""

import json

import bakeoff
import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.train import fit, load_run

from . import published

FOLDER = published.MODELS.parent
WORDS = "the president of these states has said to the congress that the nation is at peace and at work "


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Overrides that let base and fit train in a second each, on a text that says much twice."""
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(12):
        (texts / f"{number:02}.txt").write_text(WORDS[number:] * 4 + WORDS[::-1] * (number % 3))
    return {
        "data.corpus": {"use": "text_files", "path": str(texts)},
        "data.cache": str(tmp_path / "cache"),
        "trainer.max_steps": 2,
        "validation": {"every_steps": None, "tokens": 1024},
    }


@pytest.fixture
def base(small):
    return fit(bakeoff.recipe(FOLDER / "models" / "tiny.yaml", small), folder="runs/tiny", progress=False)


def words(changes):
    return [f"{path}={json.dumps(value)}" for path, value in changes.items()]


def test_it_begins_as_its_base_and_trains_what_is_new(small, base, tmp_path, capsys):
    recipe = FOLDER / "retrieval" / "retro_fit.yaml"
    told = ["convert", "runs/tiny", *words(small), "--recipe", str(recipe), "--folder", "runs/retro_fit/begun"]
    assert main(told) == 0
    capsys.readouterr()
    still = {**small, "optimizer.lr": 0.0}
    again = {**still, "weights": "runs/tiny"}
    alone = fit(bakeoff.recipe(FOLDER / "models" / "tiny.yaml", again), folder="runs/again", progress=False)
    first = fit(bakeoff.recipe(recipe, still), folder="runs/still", progress=False)
    for mine, theirs in zip(first.curve, alone.curve, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
        assert mine["grad_norm"] > 0
    assert first.curve[-1]["bits_per_byte"] == pytest.approx(base.curve[-1]["bits_per_byte"], rel=1e-6)

    run = fit(bakeoff.recipe(recipe, small), folder="runs/trained", progress=False)
    before = load_run("runs/retro_fit/begun").model.state_dict()
    theirs = base.model.state_dict()
    for name, tensor in theirs.items():
        assert torch.equal(run.model.state_dict()[name], tensor), name
    moved = {name for name, tensor in run.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert "backbone.blocks.1.cross.attention.output.weight" in moved
    assert all(".cross" in name or ".neighbour_encoder." in name for name in moved)


def test_without_its_beginning_it_says_how_to_make_it(small, capsys):
    path = str(FOLDER / "retrieval" / "retro_fit.yaml")
    assert main(["fit", path, *words(small), "--folder", "run"]) == 2
    assert f"make it first: bakeoff convert RUN --recipe {path} --folder" in capsys.readouterr().err
