"""Runs on meshes: what they come to is what one process comes to."""

import pytest
from bakeoff.recipe import recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SPARSE = {
    "use": "mixture_of_experts",
    "n_experts": 8,
    "expert": {"use": "gated_mlp", "width": 8},
    "shared": {"use": "mlp", "width": 4},
    "router": {"use": "bias_balanced", "k": 2, "rate": 0.01},
    "balance": [{"use": "load_balance", "coefficient": 0.1}, {"use": "router_z_loss", "coefficient": 0.1}],
}


def named(sizes):
    return "_".join(f"{name}{size}" for name, size in sizes.items())


LAYOUTS = [
    {"data": 2},
    {"shard": 2},
    {"tensor": 2},
    {"data": 2, "shard": 2},
    {"data": 2, "tensor": 2},
    {"shard": 2, "tensor": 2},
    {"tensor": 2, "sequence_parallel": True},
    {"shard": 2, "cpu_offload": True},
    {"shard": 2, "reshard": False},
    {"context": 2},
    {"context": 2, "context_op": "ulysses"},
    {"context": 4, "context_order": "contiguous"},
    {"data": 2, "context": 2},
    {"context": 2, "tensor": 2},
    {"context": 2, "tensor": 2, "sequence_parallel": True},
    {"shard": 2, "context": 2},
]
OF_EXPERTS = [
    {"expert": 2},
    {"expert": 2, "shard": 2},
    {"data": 2, "expert": 2},
    {"expert": 2, "tensor": 2},
    {"expert": 2, "context": 2},
]


def targets(path, ranks, rank, steps=5):
    """How many targets each step of a rank has."""
    data = recipe(path).build("data").prepare(progress=False)
    batches = iter(data.training(tokens_wanted=17, seed=recipe(path).seed_of("data"), ranks=ranks, rank=rank))
    found = []
    for _ in range(steps):
        documents = [next(batches)["documents"] for _ in range(data.accumulation(ranks))]
        found.append(sum(16 if d is None else int((d[:, 1:] == d[:, :-1]).sum()) for d in documents))
    return found


def test_ranks_have_unequally_many_targets_and_some_none(made):
    path = made()
    for ranks in (2, 4):
        assert len({tuple(targets(path, ranks, rank)) for rank in range(ranks)}) == ranks
    assert 0 in [count for rank in range(4) for count in targets(path, 4, rank)]


@pytest.mark.parametrize("sizes", LAYOUTS, ids=named)
def test_a_run_is_that_of_one_process(whole, on_mesh, close, sizes):
    path, one = whole()
    close(on_mesh(path, sizes), one)


@pytest.mark.parametrize("sizes", OF_EXPERTS, ids=named)
def test_a_run_of_experts_is_that_of_one_process(whole, on_mesh, close, sizes):
    path, one = whole(SPARSE)
    close(on_mesh(path, sizes), one)
    assert "feed_forward.load" in {row["name"] for row in one.layers}


def test_a_run_in_bfloat16_is_that_of_one_process(whole, on_mesh, close):
    path, one = whole(trainer__precision="bf16-mixed")
    close(on_mesh(path, {"shard": 2}), one)


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_a_hybrid_of_recurrence_and_window_recomputed_on_shared_rows(whole, on_mesh, close, order):
    feed_forward = {"use": "gated_mlp", "width": 16}
    window = {"use": "attention", "n_heads": 4, "n_kv_heads": 1, "window": 5, "position": {"use": "rope"}}
    blocks = {
        "recurrent": {"use": "pre_norm", "mixer": {"use": "rg_lru"}, "feed_forward": feed_forward, "dropout": 0.1},
        "attention": {"use": "pre_norm", "mixer": window, "feed_forward": feed_forward, "dropout": 0.1},
    }
    model = {"d_model": 16, "depth": 3, "pattern": ["recurrent", "recurrent", "attention"], "blocks": blocks}
    path, one = whole(**{f"model__{name}": value for name, value in model.items()})
    close(on_mesh(path, {"context": 2, "context_order": order}, "trainer.recompute=full"), one)
