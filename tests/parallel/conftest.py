"""A recipe whose rows hold very unequal numbers of targets, and runs of it by one process and by several ranks."""

import math
import os
import random

import pytest
import torch
import yaml
from bakeoff.recipe import recipe
from bakeoff.train import fit, load_run

from .launching import Ranks

WORDS = "the a model state token reads writes keeps window long short learns value of and to in"


@pytest.fixture(scope="module")
def single_threaded(tmp_path_factory):
    """One thread in each process, and a cache of their own."""
    before, threads = os.environ.get("BAKEOFF_CACHE"), torch.get_num_threads()
    os.environ["BAKEOFF_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    os.environ.pop("BAKEOFF_CACHE")
    if before is not None:
        os.environ["BAKEOFF_CACHE"] = before


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """Documents of very different lengths, most of them empty: many rows hold no target at all."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    for number in range(12):
        (folder / f"{number:02}.txt").write_text(" ".join(draw.choices(WORDS.split(), k=draw.choice([3, 20, 60]))))
    for number in range(700):
        (folder / f"empty-{number}.txt").write_text("")
    return folder


@pytest.fixture(scope="module")
def made(texts, tmp_path_factory, single_threaded):
    """`made(section__key=value, …)`: a recipe of 8 rows a step, each a micro-batch, as a file."""

    def make(feed_forward=None, **changes):
        attention = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
        dense = feed_forward or {"use": "gated_mlp", "width": 16}
        block = {"use": "pre_norm", "mixer": attention, "feed_forward": dense, "dropout": 0.1}
        values = {
            "name": "tiny",
            "model": {"d_model": 16, "depth": 2, "pattern": ["layer"], "blocks": {"layer": block}},
            "data": {
                "corpus": {"use": "text_files", "path": str(texts)},
                "tokenizer": {"use": "byte"},
                "length": 16,
                "batch_tokens": 128,
                "micro_batch": 1,
            },
            "objective": {"use": "causal", "z_loss": 1e-3},
            # A gradient of 0.1 is rounded by 1e-8, and an element whose own is hardly larger must not step by that:
            # lr * 1e-8 / eps is far below the tolerance.
            "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2, "fused": True, "eps": 1e-4},
            "schedule": {"use": "cosine", "warmup": 0.25},
            "trainer": {"max_steps": 5, "log_every_n_steps": 1, "gradient_clip_val": 0.5, "accelerator": "cpu"},
            "validation": {"every_steps": 2},
            "checkpoint": {"every_steps": 3},
        }
        for name, value in changes.items():
            section, key = name.split("__")
            values[section][key] = value
        path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    return make


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """`whole(…)`, as `made`: path of the recipe, and the run of one process; each is made once."""
    known = {}

    def make(*feed_forward, **changes):
        key = repr((feed_forward, changes))
        if key not in known:
            path = made(*feed_forward, **changes)
            known[key] = path, fit(recipe(path), folder=tmp_path_factory.mktemp("one") / "run", progress=False)
        return known[key]

    return make


@pytest.fixture
def start(tmp_path):
    """`start(recipe, sizes, folder, *overrides)`: ranks of a mesh, whose processes are all ended with the test."""
    started = []

    def begin(path, sizes, folder, *overrides):
        n = math.prod(size for size in sizes.values() if type(size) is int)
        strategy = yaml.safe_dump({"use": "mesh", **sizes}, default_flow_style=True, width=1000).strip()
        words = ["fit", str(path), f"trainer.devices={n}", f"trainer.strategy={strategy}", *overrides]
        ranks = Ranks(n, [*words, "--folder", str(folder)], tmp_path / f"logs-{len(started)}")
        started.append(ranks)
        return ranks

    yield begin
    for ranks in started:
        ranks.end()


@pytest.fixture
def on_mesh(start, tmp_path):
    """`on_mesh(recipe, sizes, *overrides)`: the run of several ranks."""

    def run(path, sizes, *overrides, folder=None):
        folder = folder or tmp_path / "run"
        ranks = start(path, sizes, folder, *overrides)
        assert set(ranks.wait()) == {0}, ranks.errors
        return load_run(folder)

    return run


@pytest.fixture
def close():
    """`close(a, b, tolerance)`: curves and parameters of two runs."""

    def check(one, other, tolerance=1e-5):
        assert len(one.curve) == len(other.curve) > 0
        for mine, theirs in zip(one.curve, other.curve, strict=True):
            for name in ("step", "tokens", "flops", "lr"):
                assert mine[name] == theirs[name]
            for name in ("loss", "grad_norm", "bits_per_byte", "nats_per_token"):
                assert (mine[name] is None) == (theirs[name] is None)
                if mine[name] is not None:
                    assert mine[name] == pytest.approx(theirs[name], rel=tolerance, abs=tolerance), (name, mine["step"])
        rest = dict(other.model.state_dict())
        for name, value in one.model.state_dict().items():
            far = f"{name}: %s"
            torch.testing.assert_close(value, rest.pop(name), rtol=0, atol=tolerance, msg=far.__mod__)
        assert not rest
        for mine, theirs in zip(one.layers, other.layers, strict=True):  # what parts tell of themselves, step by step
            assert mine.pop("value") == pytest.approx(theirs.pop("value"), rel=tolerance, abs=tolerance)
            assert mine == theirs

    return check
