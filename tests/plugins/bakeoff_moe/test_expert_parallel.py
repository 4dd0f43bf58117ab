"""Experts over two and four ranks compute what one process computes; each case runs on all ranks over gloo."""

from pathlib import Path

import pytest
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_on_ranks.py")

SHARED = {"shared": {"use": "mlp", "width": 5}, "shared_gate": True}
BALANCED = {
    "router": {"use": "bias_balanced", "k": 2, "rate": 0.5},
    "balance": [{"use": "sequence_balance", "coefficient": 0.1}, {"use": "router_z_loss", "coefficient": 0.1}],
}


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    """Two, and four, processes."""
    return shared_ranks(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_rows_go_where_they_are_sent_and_gradients_back(ranks, dtype):
    ranks.run(CASES, "exchange_and_back", dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("ids", ["any", "skewed", "at_home", "only_rank_1"])
@pytest.mark.parametrize(
    "expert", [{"use": "gated_mlp", "width": 6}, {"use": "mlp", "width": 6, "bias": True}, "scaled"]
)
def test_a_layer_equals_one_process(ranks, ids, expert):
    ranks.run(CASES, "layer_equals_one", arguments={"router": "by_id", "expert": expert}, ids=ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        SHARED,
        BALANCED,
        {"router": {"use": "switch", "capacity_factor": 0.5}},
        {"router": {"use": "soft_mixture", "slots": 2}},
        {"freeze": "experts"},
    ],
    ids=["shared", "bias_balanced", "switch", "soft_mixture", "frozen"],
)
def test_routers_and_shared_experts(ranks, arguments):
    ranks.run(CASES, "layer_equals_one", arguments=arguments)


@pytest.mark.slow
@pytest.mark.parametrize("data", [1, 2])
def test_a_whole_layer_spread_afterwards_and_over_replicas(ranks, data):
    ranks.run(CASES, "layer_equals_one", arguments=SHARED, data=data, from_the_start=False)


@pytest.mark.slow
@pytest.mark.parametrize("data", [1, 2])
def test_training_a_model_equals_one_process(ranks, data):
    ranks.run(CASES.with_name("cases_of_training.py"), "training_equals_one", data=data)


@pytest.mark.slow
def test_experts_that_are_not_spread_learn_under_ddp(ranks):
    ranks.run(CASES, "unspread_layers_learn_under_ddp")


@pytest.mark.slow
def test_uneven_experts_are_refused(ranks):
    ranks.run(CASES, "indivisible")


@pytest.mark.slow
def test_a_rank_that_fails_is_named_and_none_is_left_waiting(ranks):
    with pytest.raises(AssertionError, match=r"(?s)rank 1 of [24]: .*rank 1 gives up"):
        ranks.run(CASES, "one_fails")
    assert not ranks.processes
