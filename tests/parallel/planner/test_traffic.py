"""Bytes that the planner says ranks send, against those that they are seen to send."""

from pathlib import Path

import pytest
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_traffic.py")
ATTENTION = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
BLOCKS = {"layer": {"use": "pre_norm", "mixer": ATTENTION, "feed_forward": {"use": "gated_mlp", "width": 128}}}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dimension", ["data", "shard", "tensor"])
def test_a_step_sends_what_is_planned(dimension: str, ranks: int):
    shared_ranks(ranks).run(CASES, "as_planned", dimension=dimension, ranks=ranks, blocks=BLOCKS)


def test_an_untied_head():
    shared_ranks(2).run(CASES, "as_planned", dimension="shard", ranks=2, blocks=BLOCKS, tied_embedding=False)
