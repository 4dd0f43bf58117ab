"""A small run on preferences, with what tests of runs share."""

import json

import bakeoff
import pytest

from tests.train.conftest import in_child, one_thread, same_run, texts, values

__all__ = ["in_child", "one_thread", "same_run", "texts", "values"]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A file of 40 pairs: the right sum, and one that is off by one."""
    file = tmp_path_factory.mktemp("pairs") / "sums.jsonl"
    sums = [(a, b) for a in range(8) for b in range(5)]
    rows = [{"prompt": f"{a}+{b}", "chosen": str(a + b), "rejected": str(a + b + 1), "margin": 1.0} for a, b in sums]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def preferring(values, pairs):
    """`preferring(objective, path=value, …)`: the tiny recipe of runs on these pairs."""

    def make(objective, **overrides):
        corpus = {"use": "preferences", "path": str(pairs), "validation": 0.2}
        values["data"] |= {"corpus": corpus, "template": {"use": "plain"}, "micro_batch": 2}
        values["objective"] = {"use": objective}
        values["validation"] = {"every_steps": 4, "tokens": None}
        return bakeoff.recipe(values, {path.replace("__", "."): value for path, value in overrides.items()})

    return make
