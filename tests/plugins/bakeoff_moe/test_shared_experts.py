"""Mixtures whose experts, and the inside of each expert, are shared out among ranks."""

from pathlib import Path

import pytest
from bakeoff.interfaces import LayerContext
from bakeoff.testing.build import built
from bakeoff.testing.ranks import shared_ranks
from bakeoff_moe import MixtureOfExperts

CASES = Path(__file__).with_name("cases_of_shared_experts.py")
MODELS = Path(__file__).parents[2] / "parallel" / "cases_of_tensor.py"
EXPERT = {"use": "mlp", "width": 6, "bias": True}


@pytest.mark.parametrize(
    "arguments",
    [
        {"expert": EXPERT, "shared": {"use": "gated_mlp", "width": 4}, "shared_gate": True},
        {
            "expert": {"use": "clamped_glu", "width": 4},
            "router": {"use": "bias_balanced", "k": 2},
            "balance": [{"use": "router_z_loss", "coefficient": 0.1}],
        },
        {"expert": EXPERT, "router": {"use": "soft_mixture", "slots": 2}},
    ],
    ids=["shared", "balanced", "soft"],
)
def test_experts_over_two_ranks_and_each_over_two_more(arguments):
    shared_ranks(4).run(CASES, "layer_equals_one", arguments=arguments)


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["stream_whole", "stream_shared_out"])
@pytest.mark.parametrize("router", ["reinforce_router", "noisy_top_k"])
def test_in_training_routers_learn_what_they_do_in_one_process(router, sequence_parallel):
    """From noise, and from the loss of the tokens."""
    mixture = {"use": "mixture_of_experts", "n_experts": 4, "expert": EXPERT, "router": {"use": router}}
    layer = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 2}, "feed_forward": mixture}
    arguments = {"blocks": {"layer": layer}, "sequence_parallel": sequence_parallel}
    shared_ranks(2).run(MODELS, "share_equals_whole", **arguments)


def test_experts_of_a_width_that_ranks_do_not_divide_are_refused():
    context = LayerContext(d_model=8, vocab_size=9, max_length=8)
    part = built(MixtureOfExperts, {"n_experts": 4, "expert": EXPERT}, context)
    cut = part.experts.parallel_plan(4)["up.weight"]
    with pytest.raises(ValueError, match=r"^6 channels .* 4 tensor ranks"):
        cut.ranges(part.experts.up.weight.shape[cut.dim], 4, 0)
