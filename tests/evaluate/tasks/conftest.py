"""Untrained models of small recipes, as tasks are given them."""

from __future__ import annotations

import pytest
from bakeoff.evaluate import Measured
from bakeoff.recipe import recipe

ATTENTION = {"use": "attention", "n_heads": 2, "position": {"use": "rope"}}


@pytest.fixture
def untrained(tmp_path):
    """`untrained(mixer, **changes)`: a model of that mixer on 300 made-up reviews, with its data and recipe."""

    def make(mixer=None, **changes):
        block = {"use": "pre_norm", "mixer": mixer or ATTENTION, "feed_forward": {"use": "mlp"}}
        made = recipe(
            {
                "model": {"d_model": 16, "depth": 1, "pattern": ["layer"], "blocks": {"layer": block}},
                "data": {
                    "corpus": {"use": "reviews", "texts": 300, "validation": 0.5},
                    "tokenizer": {"use": "byte"},
                    "length": 512,
                    "batch_tokens": 512,
                    "cache": str(tmp_path / "cache"),
                },
            },
            changes,
        )
        data = made.build("data").prepare(progress=False)
        model = made.build("model", vocab_size=data.vocab_size).initialise(made.seed_of("initialisation"))
        return Measured.of(model, data, made)

    return make
