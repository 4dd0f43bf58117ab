"""A recipe that trains in a fraction of a second, and what tests of runs share."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

import bakeoff
import pytest
import torch

WORDS = "the a model state token reads writes keeps window long short learns value of and to in"


@pytest.fixture(autouse=True)
def one_thread(tmp_path_factory, monkeypatch):
    """Two runs are compared bit for bit, and forked from a process that holds no thread pool."""
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder of 24 short documents."""
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(0)
    for number in range(24):
        (folder / f"{number:02}.txt").write_text(" ".join(draw.choices(WORDS.split(), k=40)))
    return folder


@pytest.fixture
def values(texts):
    """The recipe as plain values: 2 micro-batches of 2 rows of 16 tokens a step, with dropout."""
    block = {
        "use": "pre_norm",
        "mixer": {"use": "attention", "n_heads": 2, "position": {"use": "rope"}},
        "feed_forward": {"use": "mlp", "width": 16},
        "dropout": 0.1,
    }
    return {
        "name": "tiny",
        "model": {"d_model": 16, "depth": 2, "pattern": ["layer"], "blocks": {"layer": block}},
        "data": {
            "corpus": {"use": "text_files", "path": str(texts)},
            "tokenizer": {"use": "byte"},
            "length": 16,
            "batch_tokens": 64,
            "micro_batch": 2,
        },
        "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2, "fused": True},
        "schedule": {"use": "cosine", "warmup": 0.25},
        "trainer": {"max_steps": 8, "log_every_n_steps": 1, "gradient_clip_val": 1.0},
        "validation": {"every_steps": 4, "tokens": 64},
        "checkpoint": {"every_steps": 2},
    }


@pytest.fixture
def tiny(values):
    """`tiny(path=value, …)`: the recipe with overrides; dots in paths are written as double underscores."""

    def make(**overrides):
        return bakeoff.recipe(values, {path.replace("__", "."): value for path, value in overrides.items()})

    return make


@pytest.fixture
def in_child():
    """`in_child(call)`: run it in a forked process; returns the exit code, negative for a signal."""

    def run(call) -> int:
        process = multiprocessing.get_context("fork").Process(target=call)
        process.start()
        process.join(120)
        assert process.exitcode is not None, "the child hangs"
        return process.exitcode

    return run


def _weights(folder: Path):
    return torch.load(folder / "model.pt", weights_only=True)


@pytest.fixture
def same_run():
    """`same_run(a, b)`: two finished runs have equal weights, bit for bit, and equal curves but for the seconds."""

    def check(a, b) -> None:
        mine, other = _weights(a.folder), _weights(b.folder)
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            assert torch.equal(value, other[name]), name
        rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in run.curve] for run in (a, b)]
        assert rows[0] == rows[1]
        assert a.layers == b.layers

    return check
