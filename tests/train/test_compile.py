"""Compiled blocks leave no trace in checkpoints."""

import functools

import bakeoff
import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.train import fit, load_run
from bakeoff.train.assembly import compile_blocks
from torch import nn


def check_names_and_crossing(tiny, tmp_path):
    def plain_or(compiled):
        return tiny(compile=compiled, model__blocks__layer__dropout=0.0)  # the compiler draws other noise

    compiled = fit(plain_or(True), folder=tmp_path / "compiled", progress=False)
    path = tmp_path / "compiled" / "checkpoints" / "step-8.ckpt"
    names = torch.load(path, weights_only=True)["state_dict"]
    assert not [name for name in names if "_orig_mod" in name or name.startswith("module.")]
    plain = fit(plain_or(False), folder=tmp_path / "plain", progress=False)
    assert compiled.model.state_dict().keys() == plain.model.state_dict().keys()
    for mine, theirs in zip(compiled.curve, plain.curve, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    # from a compiled run to a plain one, and back
    for folder, flag in ((tmp_path / "compiled", False), (tmp_path / "plain", True)):
        (folder / "summary.json").unlink()
        (folder / "checkpoints" / "step-8.ckpt").unlink()
        assert fit(plain_or(flag), folder=folder, progress=False).metrics["step"] == 8
        assert load_run(folder).metrics["step"] == 8


def test_checkpoints_cross_between_compiled_and_plain(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend="aot_eager"))
    check_names_and_crossing(tiny, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_checkpoints_cross_between_the_compiler_proper_and_plain(tiny, tmp_path):
    check_names_and_crossing(tiny, tmp_path)


def test_a_part_that_does_not_claim_it_is_named(values):
    values["model"]["blocks"]["layer"]["mixer"] = {"use": "lstm"}
    model = bakeoff.recipe(values).build("model", vocab_size=259)
    if all(block.capabilities.compile for block in model.backbone.layers):
        pytest.skip("the part claims it")
    with pytest.raises(CapabilityError, match="layers 0, 1"):
        compile_blocks(model.backbone)
