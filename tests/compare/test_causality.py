"""Routers that see the future are refused in next-token prediction before anything is trained."""

import json
import re

import pytest
from bakeoff.cli.main import main
from bakeoff.compare.causality import probe
from bakeoff.errors import CapabilityError
from bakeoff.recipe import recipe
from bakeoff.testing.laws.round_trip import base


def arm(**router):
    tree = base()
    experts = {"use": "mixture_of_experts", "n_experts": 4, "expert": {"use": "mlp", "width": 16}, "router": router}
    tree["model"]["blocks"]["layer"]["feed_forward"] = experts
    tree["data"]["isolate_documents"] = False
    return recipe(tree)


@pytest.mark.parametrize("router", [{"use": "expert_choice"}, {"use": "soft_mixture", "slots": 2}])
def test_experts_that_choose_or_mix_tokens_of_a_sequence_are_refused(router):
    assert probe(arm(**router), {}) == (
        "its parts disclaim `causal`: in next-token prediction they would see what they are to predict"
    )


@pytest.mark.parametrize("router", [{"use": "expert_choice"}, {"use": "soft_mixture", "slots": 2}])
def test_neither_are_they_trained_alone(router, tmp_path, capsys):
    told = "mixture_of_experts at model.blocks.layer.feed_forward; use parts that claim it"
    with pytest.raises(CapabilityError, match=re.escape(told)):
        arm(**router).fit(folder=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    (tmp_path / "r.yaml").write_text(json.dumps(arm(**router).tree))
    assert main(["check", str(tmp_path / "r.yaml")]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "router",
    [
        {"use": "expert_choice", "over": "batch"},
        {"use": "soft_mixture", "slots": None},
        {"use": "linear_assignment"},
        {"use": "sinkhorn"},
        {"use": "hash_router"},
        {"use": "reinforce_router"},
    ],
)
def test_routers_that_are_causal_in_evaluation_may_be_compared(router):
    assert probe(arm(**router), {}) is None
