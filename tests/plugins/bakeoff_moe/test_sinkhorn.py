"""`sinkhorn`: the plan's sums, and its equality with the plain scaling of exp(scores)."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff_moe import Sinkhorn
from bakeoff_moe.sinkhorn import log_plan


def normal(n, E, size=1.0, seed=0):
    return size * torch.randn(n, E, generator=torch.Generator().manual_seed(seed)).double()


def plain(scores, tolerance=1e-4):
    """diag(d0) exp(s) diag(d1), scaled in turn until d1 changes by less than the tolerance on average."""
    K = scores.exp()
    d1, change = torch.ones(K.shape[1]).double(), 1.0
    while change >= tolerance:
        before = d1
        d0 = 1 / (K.shape[0] * (K @ d1))
        d1 = 1 / (K.shape[1] * (K.T @ d0))
        change = (d1 - before).abs().mean()
    return d0[:, None] * K * d1


@pytest.mark.parametrize(("n", "E"), [(12, 4), (64, 8), (37, 5), (3, 8), (1, 4)])
@pytest.mark.parametrize("size", [0.0, 1.0, 5.0])
def test_rows_and_columns_have_equal_sums(n, E, size):
    plan = log_plan(normal(n, E, size), 1e-4, 1000).exp()
    torch.testing.assert_close(plan.sum(1) * n, torch.ones(n).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(plan.sum(0) * E, torch.ones(E).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_plan_is_that_of_the_plain_scaling(seed):
    scores = normal(12, 4, seed=seed)
    plan, want = log_plan(scores, 1e-4, 1000).exp(), plain(scores)
    torch.testing.assert_close(plan * 48, want * 48, atol=1e-3, rtol=0)
    assert torch.equal(plan.argmax(1), want.argmax(1))


def test_it_ends_when_it_has_converged():
    scores = normal(64, 8)
    assert torch.equal(log_plan(scores, 1e-4, 1000), log_plan(scores, 1e-4, 100))
    exact = log_plan(scores, 1e-12, 10_000).exp()
    assert (log_plan(scores, 1e-4, 1000).exp() - exact).abs().max() * 64 < 1e-3
    assert (log_plan(scores, 1e-4, 1).exp() - exact).abs().max() * 64 > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores_neither_overflow_nor_lose_what_they_have_in_common(dtype):
    scores = normal(16, 4).to(dtype)
    for offset in (500.0, -500.0):
        plan = log_plan(scores + offset, 1e-4, 1000).exp()
        torch.testing.assert_close(plan, log_plan(scores, 1e-4, 1000).exp(), atol=1e-4, rtol=1e-2)
    wide = log_plan((300 * scores), 1e-4, 300)
    assert wide.isfinite().all()
    torch.testing.assert_close(wide.exp().sum(0) * 4, torch.ones(4, dtype=dtype), atol=1e-4, rtol=0)


def router(**arguments):
    made = Sinkhorn(LayerContext(d_model=8, vocab_size=9, max_length=64, n_experts=4), **arguments)
    initialise(made, seed=0)
    return made


def inputs(B, T):
    return torch.randn(B, T, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("k", [1, 2])
def test_in_training_the_plan_chooses_and_the_scores_weigh(k):
    made, x = router(k=k).train(), inputs(3, 8)
    real = torch.arange(8) < torch.tensor([[8], [5], [0]])
    kept = real.flatten()
    routing = made.route(x, Sequence(torch.zeros(3, 8, dtype=torch.long), real=real))
    scores = (x.flatten(0, 1) @ made.scores.weight.T).detach()
    assert torch.equal(routing.experts[kept], plain(scores[kept].double()).topk(k).indices)
    assert not torch.equal(routing.experts[kept], scores[kept].topk(k).indices)
    assert (routing.experts[~kept] == 4).all()
    values = scores.sigmoid() if k == 1 else scores.softmax(-1)
    torch.testing.assert_close(routing.weights[kept], values[kept].gather(1, routing.experts[kept]))


@pytest.mark.parametrize("k", [1, 2])
def test_in_evaluation_the_scores_choose(k):
    made, x = router(k=k).eval(), inputs(2, 8)
    routing = made.route(x, Sequence(torch.zeros(2, 8, dtype=torch.long)))
    assert torch.equal(routing.experts, (x.flatten(0, 1) @ made.scores.weight.T).topk(k).indices)


def test_no_real_token_in_training():
    sequence = Sequence(torch.zeros(1, 3, dtype=torch.long), real=torch.zeros(1, 3, dtype=torch.bool))
    assert (router().train().route(inputs(1, 3), sequence).experts == 4).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"k": 4}, "k is 4, n_experts 4"), ({"tolerance": 0.0}, "tolerance is 0.0"), ({"iterations": 0}, "iterations 0")],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        router(**arguments)
