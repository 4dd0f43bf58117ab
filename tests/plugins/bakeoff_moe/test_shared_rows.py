"""Mixtures where ranks share out the tokens of rows: choices, noise, balances and feedback are those of whole rows."""

from pathlib import Path

import pytest
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).parents[2] / "parallel" / "cases_of_context.py"
BALANCE = [
    {"use": "load_balance", "coefficient": 0.1},
    {"use": "sequence_balance", "coefficient": 0.2},
    {"use": "router_z_loss", "coefficient": 0.1},
]
NOISY = [{"use": "expert_load", "coefficient": 0.1}, {"use": "importance", "coefficient": 0.1}]


def blocks(router, balance=BALANCE, **more):
    experts = {"use": "mixture_of_experts", "n_experts": 4, "expert": {"use": "mlp", "width": 8}}
    mixture = {**experts, "router": router, "balance": balance, **more}
    attention = {"use": "attention", "n_heads": 2, "position": {"use": "rope"}}
    return {"layer": {"use": "pre_norm", "mixer": attention, "feed_forward": mixture}}


@pytest.mark.parametrize(
    "layers",
    [
        blocks({"use": "top_k", "k": 2, "jitter": 0.1}, shared={"use": "mlp", "width": 4}, shared_gate=True),
        blocks({"use": "noisy_top_k", "k": 2}, [*BALANCE, *NOISY]),
        blocks({"use": "bias_balanced", "k": 2}, [*BALANCE, {"use": "device_balance", "groups": 2}]),
        blocks({"use": "switch", "capacity_factor": 0.75}),
        blocks({"use": "gshard", "capacity_factor": 1.0, "jitter": 0.1}),
        blocks({"use": "sinkhorn", "k": 2}),
        blocks({"use": "linear_assignment"}, []),
        blocks({"use": "expert_choice", "over": "batch"}),
        blocks({"use": "hash_router", "k": 2}, []),
        blocks({"use": "reinforce_router", "coefficient": 0.1}),
    ],
    ids=lambda layers: layers["layer"]["feed_forward"]["router"]["use"],
)
def test_a_mixture_is_that_of_whole_rows(layers):
    shared_ranks(2).run(CASES, "shared_rows_equal_whole", blocks=layers, order="zigzag", real=(1, 12))
