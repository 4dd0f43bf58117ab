"""Mixers that ranks share out by heads or channels."""

from pathlib import Path

import pytest
from bakeoff.registry import find
from bakeoff.testing.build import built, context
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_shares.py")
#: Six heads in three groups, which two ranks cut in the middle of the second.
MIDDLE = {"use": "mamba2", "expand": 3, "state_size": 4, "head_width": 8, "n_groups": 3, "chunk": 4, "bias": True}
SHARED = [
    {"use": "mamba", "state_size": 4},
    {"use": "mamba", "state_size": 3, "dt_rank": 2, "bias": True, "norm_inputs": {"use": "rms_norm"}},
    {"use": "mamba2", "state_size": 8, "head_width": 8, "n_groups": 1},
    {"use": "mamba2", "state_size": 8, "head_width": 8, "n_groups": 2},
    MIDDLE,
    {"use": "s4", "state_size": 6},
    {"use": "s4d", "state_size": 2, "initial": "inv", "gated": False},
    {"use": "rg_lru", "width": 24, "n_heads": 4},
    {"use": "mlstm", "n_heads": 4, "key_width": 16},
    {"use": "slstm", "n_heads": 4},
    {"use": "slstm", "n_heads": 4, "width": 24},
    {"use": "min_gru", "width": 20},
]


def told(arguments):
    return "-".join(str(value) for value in arguments.values())


@pytest.mark.parametrize("arguments", SHARED, ids=told)
def test_outputs_gradients_and_decoding_are_those_of_one_process(arguments):
    shared_ranks(2).run(CASES, "share_equals_whole", **arguments)


@pytest.mark.parametrize("groups", [1, 2])
def test_ranks_that_share_a_group(groups):
    arguments = {"state_size": 8, "head_width": 8, "n_groups": groups}
    shared_ranks(4).run(CASES, "share_equals_whole", use="mamba2", **arguments)


@pytest.mark.parametrize("arguments", SHARED, ids=told)
def test_a_share_begins_with_the_values_of_the_whole(arguments):
    shared_ranks(2).run(CASES, "begins_as_the_whole", **arguments)


@pytest.mark.parametrize(
    ("use", "arguments", "heads", "possible"),
    [
        ("mamba2", {"head_width": 8, "state_size": 4}, 4, "1, 2, 4"),
        ("rg_lru", {"n_heads": 2}, 2, "1, 2"),
        ("mlstm", {"n_heads": 4}, 4, "1, 2, 4"),
        ("slstm", {"n_heads": 8}, 8, "1, 2, 4, 8"),
    ],
)
def test_heads_that_ranks_do_not_divide_are_refused(use, arguments, heads, possible):
    part = built(find(use), arguments, context())
    with pytest.raises(ValueError, match=f"n_heads is {heads} .* degree 3: .* possible: {possible}$"):
        part.parallel_plan(3)


@pytest.mark.parametrize("use", ["lstm", "multiplicative_lstm"])
def test_a_recurrence_over_all_channels_does_not_claim_it(use):
    assert not find(use).capabilities.tensor_parallel
