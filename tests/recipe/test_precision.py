"""Which precisions are refused where, by what they lack."""

import importlib.util

import bakeoff
import pytest
import torch
from bakeoff.recipe.precision import precision_faults, refused_on_a_mesh

MESH = {"use": "mesh", "shard": 2}


def faults(strategy="auto", optimizer=(), **trainer):
    return "\n".join(precision_faults({"strategy": strategy, **trainer}, dict(optimizer)))


@pytest.fixture
def device(monkeypatch):
    """`device(major, minor)`: a CUDA device of that compute capability stands here, and torchao is or is not."""

    def stand_in(major, minor, *, installed=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (major, minor))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Stand-in 1")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)

    return stand_in


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("strategy", ["auto", "ddp", MESH], ids=str)
def test_what_goes_everywhere(precision, strategy):
    assert faults(strategy, precision=precision, accelerator="cpu") == ""


@pytest.mark.parametrize("strategy", ["auto", "ddp", "ddp_spawn"])
def test_scaled_gradients_on_a_device_alone_and_under_ddp(strategy):
    assert faults(strategy, precision="16-mixed", accelerator="gpu") == ""
    assert "would silently run as bf16-mixed" in faults(strategy, precision="16-mixed", accelerator="cpu")


@pytest.mark.parametrize("strategy", ["fsdp", MESH], ids=str)
def test_scaled_gradients_are_refused_elsewhere(strategy):
    told = faults(strategy, precision="16-mixed", accelerator="gpu")
    assert told.startswith("trainer.precision: 16-mixed")
    assert "trainer.strategy: ddp" in told


def test_float16_without_scaling():
    told = faults(precision="16-true", accelerator="gpu")
    assert told.startswith("trainer.precision: 16-true trains in float16 without loss scaling")


def test_transformer_engine_says_how_to_install_it(device):
    device(9, 0, installed=False)
    assert "pip install --no-build-isolation 'transformer-engine[pytorch]'" in faults(precision="transformer-engine")
    device(9, 0)
    assert faults(precision="transformer-engine") == ""
    assert "is for CUDA devices" in faults(precision="transformer-engine", accelerator="cpu")


@pytest.mark.parametrize(
    ("capability", "told"),
    [
        ((8, 0), "Stand-in 1 has compute capability 8.0, and float8 products take 8.9 or more"),
        ((8, 9), ""),
        ((9, 0), ""),
    ],
)
def test_float8_by_capability(device, capability, told):
    device(*capability)
    found = faults(fp8=True, precision="bf16-mixed")
    assert told in found if told else found == ""


def test_float8_says_how_to_install_it(device):
    device(9, 0, installed=False)
    assert "pip install 'bakeoff[fp8]'" in faults(fp8=True, precision="bf16-true")


def test_float8_wants_bfloat16_beside_it(device):
    device(9, 0)
    assert "trainer.fp8: true beside trainer.precision 32-true" in faults(fp8=True)


def test_what_no_mesh_can_have(device):
    device(9, 0)
    assert list(refused_on_a_mesh({"precision": "bf16-true"})) == []
    for trainer in ({"precision": "16-mixed"}, {"precision": "transformer-engine"}, {"fp8": True}):
        (told,) = refused_on_a_mesh({"precision": "bf16-mixed", **trainer})
        assert "mesh" in told or "share" in told


def test_a_recipe_holds_it():
    made = bakeoff.recipe("bakeoff:models/transformer.yaml", ["trainer.fp8=true", "trainer.recompute=full"])
    assert made.fp8
    assert made.recompute == "full"
    assert bakeoff.recipe(made.saved()).full["trainer"] == made.full["trainer"]
    assert not {"fp8", "recompute"} & made.build("trainer").keys()
