"""State-space models where ranks share out the tokens of rows, alone and in patterns with attention and experts."""

from pathlib import Path

import pytest
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).parents[2] / "parallel" / "cases_of_context.py"
OWN_CASES = Path(__file__).with_name("cases_of_context.py")
FEED_FORWARD = {"use": "gated_mlp", "width": 8}
EXPERTS = {
    "use": "mixture_of_experts",
    "n_experts": 4,
    "router": {"use": "top_k", "k": 2},
    "expert": {"use": "mlp", "width": 8},
}
ATTENTION = {"use": "attention", "n_heads": 4, "n_kv_heads": 2}
MAMBA = {"use": "mamba", "state_size": 4, "norm_inputs": {"use": "rms_norm"}}
MAMBA2 = {"use": "mamba2", "state_size": 8, "head_width": 8, "chunk": 4}
JAMBA = {
    "mamba": {"use": "pre_norm", "mixer": MAMBA, "feed_forward": EXPERTS},
    "attention": {"use": "pre_norm", "mixer": ATTENTION, "feed_forward": FEED_FORWARD},
    "dual": {"use": "pre_norm", "mixer": MAMBA2, "feed_forward": None},
}


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_a_pattern_of_mamba_attention_and_experts_learns_as_on_whole_rows(order):
    shared_ranks(2).run(CASES, "shared_rows_equal_whole", blocks=JAMBA, depth=3, order=order)


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_selective_scans_of_all_strengths_equal_the_loop_over_whole_rows(order):
    shared_ranks(2).run(OWN_CASES, "selective_scan_equals_whole", order=order)
