"""Runs that a recipe names anywhere count by the weights that stand in their folders."""

import os
import shutil
import signal

import pytest
from bakeoff import register, registry
from bakeoff.errors import UserError
from bakeoff.parts.causal import Causal
from bakeoff.parts.files import file_hash, read_sealed
from bakeoff.train import fit
from bakeoff.train.module import TrainingModule
from bakeoff.train.named_runs import by_content, named_runs


@pytest.fixture(autouse=True)
def judged():
    """An objective that names a run."""

    @register("judged")
    class Judged(Causal):
        def __init__(self, *, judge: str):
            super().__init__()
            self.judge = judge

    yield
    del registry._registered["judged"]


@pytest.fixture
def run(tiny, tmp_path):
    """A finished run of a seed."""

    def make(seed, name):
        return fit(tiny(trainer__max_steps=2, seed=seed), folder=tmp_path / name, progress=False).folder

    return make


def naming(folder):
    return {"objective": {"use": "judged", "judge": str(folder)}}


def test_finished_runs_are_found_at_any_depth(run, tmp_path, monkeypatch):
    folder, unfinished = run(1, "one"), tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(folder / "recipe.yaml", unfinished)
    told = f"weights {file_hash(folder / 'model.pt')[:12]}"
    nest = {"a": [{"b": str(folder)}, ("x", 3, None)], "c": str(unfinished), "d": "x" * 5000, "e": "nul\0", "f": ""}
    assert named_runs(nest) == {str(folder): told}
    assert by_content(nest) == nest | {"a": [{"b": told}, ["x", 3, None]]}
    monkeypatch.chdir(tmp_path)
    assert named_runs(["one", "two"]) == {"one": told}


def test_a_recipe_is_known_by_what_stands_in_the_folders_that_it_names(tiny, run, tmp_path):
    folder = run(1, "one")
    shutil.copytree(folder, tmp_path / "copy")
    here = tiny(**naming(folder)).hash()
    assert tiny(**naming(tmp_path / "copy")).hash() == here
    shutil.rmtree(folder)
    run(2, "one")
    assert tiny(**naming(folder)).hash() != here


def test_a_killed_run_does_not_go_on_with_another_judge(tiny, run, tmp_path, monkeypatch, in_child, same_run):
    backward = TrainingModule.backward

    def dying(self, loss):
        if self.clock.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        backward(self, loss)

    folder, killed = run(1, "one"), tmp_path / "killed"
    whole = fit(tiny(**naming(folder)), folder=tmp_path / "whole", progress=False)
    assert read_sealed(whole.folder / "meta.json")["runs"] == named_runs([str(folder)])
    with monkeypatch.context() as patched:
        patched.setattr(TrainingModule, "backward", dying)
        recipe = tiny(**naming(folder))
        assert in_child(lambda: fit(recipe, folder=killed, progress=False)) == -signal.SIGKILL
    os.rename(folder, tmp_path / "moved")
    run(2, "one")
    with pytest.raises(UserError, match=r"another recipe[\s\S]*judge: 'weights \w{12}' there, 'weights \w{12}' here"):
        fit(tiny(**naming(folder)), folder=killed, progress=False)
    same_run(whole, fit(tiny(**naming(tmp_path / "moved")), folder=killed, progress=False))
