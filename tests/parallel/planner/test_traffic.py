"""Bytes that the planner says ranks send, against those that they are seen to send."""

import math
from pathlib import Path

import pytest
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_traffic.py")
ATTENTION = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
BLOCKS = {"layer": {"use": "pre_norm", "mixer": ATTENTION, "feed_forward": {"use": "gated_mlp", "width": 128}}}


MIXTURE = {"use": "mixture_of_experts", "n_experts": 8, "router": {"use": "top_k", "k": 2}}
EXPERTS = {"layer": {**BLOCKS["layer"], "feed_forward": {**MIXTURE, "expert": {"use": "gated_mlp", "width": 64}}}}


@pytest.mark.parametrize(
    "sizes",
    [
        {"data": 2},
        {"data": 4},
        {"shard": 2},
        {"shard": 4},
        {"tensor": 2},
        {"tensor": 4},
        {"data": 2, "tensor": 2},
        {"shard": 2, "tensor": 2},
        {"data": 2, "shard": 2},
        {"context": 2},
        {"context": 4},
    ],
    ids=str,
)
def test_a_step_sends_what_is_planned(sizes):
    shared_ranks(math.prod(sizes.values())).run(CASES, "as_planned", sizes=sizes, blocks=BLOCKS)


@pytest.mark.parametrize("sizes", [{"expert": 2}, {"expert": 2, "shard": 2}], ids=str)
def test_a_step_of_experts_sends_what_is_planned(sizes):
    shared_ranks(math.prod(sizes.values())).run(CASES, "as_planned", sizes=sizes, blocks=EXPERTS)


def test_an_untied_head():
    shared_ranks(2).run(CASES, "as_planned", sizes={"shard": 2}, blocks=BLOCKS, tied_embedding=False)
