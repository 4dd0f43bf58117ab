"""Runs whose blocks are computed anew in backward end where those end that keep everything."""

import functools

import bakeoff
import pytest
from bakeoff.errors import RecipeError
from bakeoff.train import fit
from torch import nn

anew = pytest.mark.parametrize("mode", ["selective", "full"])


@anew
def test_a_run_is_the_same(tiny, tmp_path, same_run, mode):
    plain = fit(tiny(), folder=tmp_path / "plain", progress=False)
    again = fit(tiny(trainer__recompute=mode), folder=tmp_path / mode, progress=False)
    same_run(plain, again)
    assert again.recipe.recompute == mode  # as the saved recipe says


@anew
@pytest.mark.parametrize("mixer", [{"use": "lstm"}, {"use": "attention", "n_heads": 2, "window": 6}], ids=str)
def test_states_that_go_on_are_the_same(tiny, tmp_path, same_run, mixer, mode):
    def stateful(**more):
        return tiny(model__blocks__layer__mixer=mixer, trainer__stateful=True, **more)

    plain = fit(stateful(), folder=tmp_path / "plain", progress=False)
    same_run(plain, fit(stateful(trainer__recompute=mode), folder=tmp_path / mode, progress=False))


def test_a_run_continues_in_another_mode(tiny, tmp_path, same_run):
    whole = fit(tiny(), folder=tmp_path / "whole", progress=False)
    fit(tiny(trainer__recompute="full"), folder=tmp_path / "parts", progress=False)
    (tmp_path / "parts" / "summary.json").unlink()
    (tmp_path / "parts" / "checkpoints" / "step-8.ckpt").unlink()
    same_run(whole, fit(tiny(trainer__recompute="selective"), folder=tmp_path / "parts", progress=False))


@anew
def test_compiled_blocks_are_the_same(tiny, tmp_path, same_run, monkeypatch, mode):
    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend="aot_eager"))

    def compiled(**more):  # the compiler draws other noise where it computes anew
        return tiny(compile=True, model__blocks__layer__dropout=0.0, **more)

    plain = fit(compiled(), folder=tmp_path / "plain", progress=False)
    same_run(plain, fit(compiled(trainer__recompute=mode), folder=tmp_path / mode, progress=False))


@pytest.mark.slow
@anew
def test_two_ranks_are_the_same(tiny, tmp_path, same_run, mode):
    ranks = {"trainer__devices": 2, "trainer__accelerator": "cpu", "trainer__strategy": "ddp", "data__micro_batch": 1}
    plain = fit(tiny(**ranks), folder=tmp_path / "plain", progress=False)
    same_run(plain, fit(tiny(**ranks, trainer__recompute=mode), folder=tmp_path / mode, progress=False))


@pytest.mark.slow
@anew
def test_shards_of_two_ranks_are_the_same(tiny, tmp_path, same_run, mode):
    mesh = {"trainer__devices": 2, "trainer__accelerator": "cpu", "trainer__strategy": {"use": "mesh", "shard": 2}}
    plain = fit(tiny(**mesh), folder=tmp_path / "plain", progress=False)
    same_run(plain, fit(tiny(**mesh, trainer__recompute=mode), folder=tmp_path / mode, progress=False))


def test_an_unknown_mode_is_a_slip(values):
    values["trainer"]["recompute"] = "selectve"
    with pytest.raises(RecipeError, match=r"trainer\.recompute.*selective"):
        bakeoff.recipe(values).check()
