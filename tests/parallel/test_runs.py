"""Runs on meshes: what they come to is what one process comes to."""

import math
import os
import random

import pytest
import torch
import yaml
from bakeoff.recipe import recipe
from bakeoff.train import fit, load_run

from .launching import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WORDS = "the a model state token reads writes keeps window long short learns value of and to in"
ATTENTION = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
EXPERTS = {"use": "mixture_of_experts", "n_experts": 8, "router": {"use": "top_k", "k": 2}}
DENSE = {"use": "gated_mlp", "width": 16}
SPARSE = {**EXPERTS, "expert": {"use": "gated_mlp", "width": 8}}


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """One thread in each process, and a cache of their own."""
    before, threads = os.environ.get("BAKEOFF_CACHE"), torch.get_num_threads()
    os.environ["BAKEOFF_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    os.environ.pop("BAKEOFF_CACHE")
    if before is not None:
        os.environ["BAKEOFF_CACHE"] = before


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Documents of very different lengths, most of them empty: many rows hold no target at all."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    for number in range(12):
        (folder / f"{number:02}.txt").write_text(" ".join(draw.choices(WORDS.split(), k=draw.choice([3, 20, 60]))))
    for number in range(700):
        (folder / f"empty-{number}.txt").write_text("")
    return folder


@pytest.fixture(scope="module")
def made(texts, tmp_path_factory):
    """`made(feed_forward, path=value, …)`: a recipe of five steps of 16 rows, as a file."""

    def make(feed_forward, **changes):
        block = {"use": "pre_norm", "mixer": ATTENTION, "feed_forward": feed_forward, "dropout": 0.1}
        values = {
            "name": "tiny",
            "model": {"d_model": 16, "depth": 2, "pattern": ["layer"], "blocks": {"layer": block}},
            "data": {
                "corpus": {"use": "text_files", "path": str(texts)},
                "tokenizer": {"use": "byte"},
                "length": 16,
                "batch_tokens": 256,
                "micro_batch": 1,
            },
            "objective": {"use": "causal", "z_loss": 1e-3},
            # eps: else a byte that never occurs, whose gradient is of the size of rounding, takes whole steps by it
            "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2, "fused": True, "eps": 1e-6},
            "schedule": {"use": "cosine", "warmup": 0.25},
            "trainer": {"max_steps": 5, "log_every_n_steps": 1, "gradient_clip_val": 0.5, "accelerator": "cpu"},
            "validation": {"every_steps": 2},
            "checkpoint": {"every_steps": 3},
        }
        path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
        path.write_text(yaml.safe_dump(recipe_values(values, changes)))
        return path

    return make


def recipe_values(values, changes):
    for name, value in changes.items():
        *sections, last = name.split("__")
        place = values
        for section in sections:
            place = place[section]
        place[last] = value
    return values


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """`whole(feed_forward, …)`: path of the recipe, and the run of one process; each is made once."""
    known = {}

    def make(feed_forward, **changes):
        key = repr((feed_forward, changes))
        if key not in known:
            path = made(feed_forward, **changes)
            known[key] = path, fit(recipe(path), folder=tmp_path_factory.mktemp("one") / "run", progress=False)
        return known[key]

    return make


def on_mesh(path, sizes, folder, *overrides):
    """The run of several ranks."""
    n = math.prod(sizes.values())
    strategy = yaml.safe_dump({"use": "mesh", **sizes}, default_flow_style=True, width=1000).strip()
    words = ["fit", str(path), f"trainer.devices={n}", f"trainer.strategy={strategy}", *overrides]
    ranks = Ranks(n, [*words, "--folder", str(folder)], folder.parent / f"logs-{folder.name}")
    assert ranks.wait() == [0] * n, ranks.errors
    return load_run(folder)


def close(one, other, **tolerance):
    """Curves and parameters of two runs."""
    tolerance = tolerance or {"rel": 1e-5, "abs": 1e-5}
    assert len(one.curve) == len(other.curve) == 5
    for mine, theirs in zip(one.curve, other.curve, strict=True):
        for name in ("step", "tokens", "flops", "lr"):
            assert mine[name] == theirs[name]
        for name in ("loss", "grad_norm", "bits_per_byte", "nats_per_token"):
            assert (mine[name] is None) == (theirs[name] is None)
            if mine[name] is not None:
                assert mine[name] == pytest.approx(theirs[name], **tolerance), (name, mine["step"])
    rest = dict(other.model.state_dict())
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(value, rest.pop(name), rtol=0, atol=tolerance["abs"], msg=lambda t: f"{name}: {t}")
    assert not rest


def named(sizes):
    return "_".join(f"{name}{size}" for name, size in sizes.items())


LAYOUTS = [
    {"data": 2},
    {"shard": 2},
    {"tensor": 2},
    {"data": 2, "shard": 2},
    {"data": 2, "tensor": 2},
    {"shard": 2, "tensor": 2},
]
OF_EXPERTS = [{"expert": 2}, {"expert": 2, "shard": 2}, {"data": 2, "expert": 2}]


@pytest.mark.parametrize("sizes", LAYOUTS, ids=named)
def test_a_run_is_that_of_one_process(whole, tmp_path, sizes):
    path, one = whole(DENSE)
    close(on_mesh(path, sizes, tmp_path / "run"), one)


@pytest.mark.parametrize("sizes", OF_EXPERTS, ids=named)
def test_a_run_of_experts_is_that_of_one_process(whole, tmp_path, sizes):
    path, one = whole(SPARSE)
    close(on_mesh(path, sizes, tmp_path / "run"), one)
