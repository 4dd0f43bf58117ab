"""Runs in bfloat16 throughout, and products in float8."""

import importlib.util

import pytest
import torch
from bakeoff.errors import RecipeError
from bakeoff.interfaces.init import roles
from bakeoff.model.casting import cast
from bakeoff.parallel.contents import contents
from bakeoff.train import fit
from bakeoff.train.precision import multiply_in_float8

MAMBA = {"use": "mamba2", "state_size": 8, "head_width": 8}


@pytest.fixture
def lower(tiny):
    """`lower(path=value, …)`: the tiny recipe in bf16-true, with parts that keep numbers in float32."""

    def make(**more):
        return tiny(**{"trainer__precision": "bf16-true", "model__blocks__layer__mixer": MAMBA, **more})

    return make


def newest(folder):
    return torch.load(max((folder / "checkpoints").glob("step-*.ckpt")), weights_only=True)


def test_what_is_kept_in_float32_is(lower, tmp_path):
    fit(lower(), folder=tmp_path, progress=False)
    held = newest(tmp_path)["state_dict"]
    kept = {name for name, value in held.items() if value.dtype == torch.float32}
    assert {name.rpartition(".")[2] for name in kept} == {"A_log", "dt_bias", "D"}  # what Mamba2 names
    assert all(value.dtype == torch.bfloat16 for name, value in held.items() if name not in kept)


def test_optimizer_states_and_masters_are_float32_in_checkpoints(lower, tmp_path):
    run = fit(lower(), folder=tmp_path, progress=False)
    held = newest(tmp_path)
    states = list(held["optimizer_states"][0]["state"].values())
    values = [value for state in states for value in state.values() if torch.is_tensor(value)]
    assert all(value.dtype == torch.float32 for value in values)
    masters = [state["master"] for state in states if "master" in state]
    low = [parameter for parameter in run.model.parameters() if parameter.dtype == torch.bfloat16]
    assert sum(master.numel() for master in masters) == sum(parameter.numel() for parameter in low)


def test_it_learns_as_float32_does(lower, tmp_path):
    wide = fit(lower(trainer__precision="32-true"), folder=tmp_path / "wide", progress=False)
    low = fit(lower(), folder=tmp_path / "low", progress=False)
    assert low.metrics["loss"] == pytest.approx(wide.metrics["loss"], rel=0.02)
    assert low.metrics["loss"] < low.curve[0]["loss"]


def test_a_killed_run_continues_exactly(lower, tmp_path, same_run):
    whole = fit(lower(), folder=tmp_path / "whole", progress=False)
    fit(lower(), folder=tmp_path / "parts", progress=False)
    (tmp_path / "parts" / "summary.json").unlink()
    (tmp_path / "parts" / "checkpoints" / "step-8.ckpt").unlink()
    same_run(whole, fit(lower(), folder=tmp_path / "parts", progress=False))


@pytest.mark.slow
def test_a_mesh_shares_out_what_is_low(lower, tmp_path):
    ranks = {"trainer__devices": 2, "trainer__accelerator": "cpu", "model__blocks__layer__dropout": 0.0}
    alone = fit(lower(model__blocks__layer__dropout=0.0), folder=tmp_path / "alone", progress=False)
    mesh = fit(lower(**ranks, trainer__strategy={"use": "mesh", "shard": 2}), folder=tmp_path / "mesh", progress=False)
    for one, other in zip(alone.curve, mesh.curve, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=4e-3)  # bf16 rounds by 2^-9 of a number
    held = contents(tmp_path / "mesh" / "checkpoints" / "step-8.ckpt", "")
    types = {name: one.dtype for name, one in held.items()}
    model = {name.removeprefix("model."): kind for name, kind in types.items() if name.startswith("model.")}
    low = {name for name, kind in model.items() if kind == torch.bfloat16}
    assert {name.rpartition(".")[2] for name in model.keys() - low} == {"A_log", "dt_bias", "D"}
    copies = {name.removeprefix("optimizer.master.model.") for name in types if ".master." in name}
    assert low - copies == {"head.projection.weight"}  # which is the embedding


def test_casting_keeps_ties_and_what_is_no_float(lower):
    model = lower(model__blocks__layer__feed_forward={
        "use": "mixture_of_experts", "n_experts": 4, "expert": {"use": "mlp"}, "router": {"use": "top_k", "k": 2},
    }).build("model", vocab_size=259, max_length=16)  # fmt: skip
    cast(model, torch.bfloat16)
    assert next(p for p in model.head.parameters()) is model.backbone.embedding
    kinds = {name.rpartition(".")[2]: value.dtype for name, value in model.named_parameters() if "router" in name}
    assert set(kinds.values()) == {torch.float32}  # whatever module the router's scores stand in
    assert cast(model, torch.float64).backbone.blocks[0].mixer.A_log.dtype == torch.float64


def test_float8_is_refused_on_a_cpu(tiny):
    with pytest.raises(RecipeError, match="the run is on a CPU, which multiplies no float8; it takes a CUDA device"):
        tiny(trainer__fp8=True, trainer__precision="bf16-mixed", trainer__accelerator="cpu").demands()


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao, extra fp8, is not installed")
def test_float8_swaps_products_whose_sizes_fit(tiny):
    width = {"model__d_model": 32, "model__blocks__layer__feed_forward": {"use": "mlp", "width": 40}}
    model = tiny(**width).build("model", vocab_size=259, max_length=16).initialise(0)
    names, kinds = list(model.state_dict()), roles(model)
    tokens = torch.zeros(1, 16, dtype=torch.long)
    wanted = model.eval().logits(tokens)[0]
    swapped = multiply_in_float8(model.backbone, emulate=True)
    assert {name.partition(".")[2].partition(".")[0] for name in swapped} == {"mixer"}  # 40 is no multiple of 16
    assert list(model.state_dict()) == names
    assert roles(model) == kinds
    with torch.autocast("cpu", torch.bfloat16):
        got = model.logits(tokens)[0]
    got.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    # e4m3 has 3 bits behind the first, and rounds by up to 2^-4 of a number
    assert 0 < (got - wanted).abs().max() < 0.1 * wanted.abs().max()
