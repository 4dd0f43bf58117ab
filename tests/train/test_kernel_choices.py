"""What computes the parts that have a choice is said once when a run begins, and stands in the run."""

import json

import pytest
import torch
from bakeoff.errors import RecipeError
from bakeoff.parts import kernels
from bakeoff.train.fitting import fit

MAMBA2 = {"use": "mamba2", "state_size": 8, "head_width": 8}


def fitted(tiny, tmp_path, capsys, **mixer):
    recipe = tiny(model__blocks__layer__mixer={**MAMBA2, **mixer}, trainer__max_steps=2)
    run = fit(recipe, folder=tmp_path / "run")
    meta = json.loads((run.folder / "meta.json").read_text())
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kernels: ")]
    return meta["starts"][0]["kernels"], said


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is chosen where no GPU is")
def test_it_is_said_once_and_saved(tiny, tmp_path, capsys):
    saved, said = fitted(tiny, tmp_path, capsys)
    assert saved == {"mamba2": "torch (no GPU)", "short_convolution": "torch (no GPU)"}
    assert said == ["kernels: mamba2 torch (no GPU), short_convolution torch (no GPU)"]


def test_a_run_on_a_cpu_says_so_on_a_machine_with_a_gpu(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernels, "_gpu", lambda: True)
    monkeypatch.setattr(kernels, "_installed", lambda package: True)
    saved, _ = fitted(tiny, tmp_path, capsys, backend="auto")
    assert saved == {"mamba2": "torch (on cpu)", "short_convolution": "torch (on cpu)"}


def test_a_model_without_a_choice_says_nothing(tiny, tmp_path, capsys):
    run = fit(tiny(trainer__max_steps=1), folder=tmp_path / "run")
    assert json.loads((run.folder / "meta.json").read_text())["starts"][0]["kernels"] == {}
    assert "kernels:" not in capsys.readouterr().err


def test_kernels_that_are_demanded_and_missing_end_it_before_it_begins(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "_installed", lambda package: False)
    recipe = tiny(model__blocks__layer__mixer={**MAMBA2, "backend": "kernels"})
    line = r"model\.blocks\.layer\.mixer .*: .* mamba2 \(mamba_ssm\) .* pip install 'bakeoff\[kernels\]'"
    with pytest.raises(RecipeError, match=line):
        fit(recipe, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
