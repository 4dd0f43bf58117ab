"""`gshard` against the router of NLLB in transformers, and by hand.

NLLB's router draws the second expert by its probability among all experts, where Algorithm 1 of the paper has that
among the two: with two experts these are the same. Its weights are normalised before dropping only where no second
expert is drawn.
"""

from functools import partial

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff_moe import GShard
from transformers import NllbMoeConfig
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeTop2Router

D, T = 6, 20


def router(n_experts, **arguments):
    made = GShard(LayerContext(d_model=D, vocab_size=9, max_length=T, n_experts=n_experts), **arguments)
    initialise(made, seed=0)
    return made


def sequence_of(made, B=1, T=T):
    return Sequence(torch.zeros(B, T, dtype=torch.long)).prepare(made.needs())


def inputs(T=T, seed=1):
    return torch.randn(1, T, D, generator=torch.Generator().manual_seed(seed))


def theirs(made, capacity, policy):
    """NLLB's weights (N, E), zero where an expert is not taken."""
    config = NllbMoeConfig(
        hidden_size=D,
        num_experts=made.n_experts,
        expert_capacity=capacity,
        second_expert_policy=policy,
        normalize_router_prob_before_dropping=True,
        batch_prioritized_routing=False,
    )
    peer = NllbMoeTop2Router(config).train()
    peer.classifier.weight = made.scores.weight
    return lambda x: peer(x.flatten(0, 1))[1]


def table(routing, n_experts):
    """(N, E) weights of the choices that are taken."""
    empty = torch.zeros(len(routing.experts), n_experts + 1)
    return empty.scatter_add(1, routing.experts, routing.weights)[:, :n_experts]


@pytest.mark.parametrize(("factor", "capacity"), [(0.5, 3), (1.0, 5), (2.0, 10)])
def test_room_and_weights_are_nllbs_where_both_experts_are_taken(monkeypatch, factor, capacity):
    made, x = router(4, capacity_factor=factor), inputs()
    monkeypatch.setattr(torch, "rand_like", partial(torch.full_like, fill_value=0.0))
    got = table(made.route(x, sequence_of(made)), 4)
    torch.testing.assert_close(got, theirs(made, capacity, "all")(x))
    assert (got > 0).sum() < 2 * T or factor == 2.0


def test_the_second_of_two_experts_is_drawn_as_in_nllb(monkeypatch):
    made, x = router(2, capacity_factor=0.8), inputs()
    drawn = torch.rand(T, generator=torch.Generator().manual_seed(3))
    monkeypatch.setattr(torch, "rand_like", lambda like: drawn.to(like.dtype))
    routing = made.route(x, sequence_of(made))
    torch.testing.assert_close(table(routing, 2), theirs(made, 8, "random")(x))
    assert 0 < (routing.wanted[:, 1] == 2).sum() < T


def test_the_second_expert_is_taken_with_twice_its_weight_and_always_in_evaluation():
    made = router(4)
    x = inputs(T=1).expand(1, 20_000, D)
    torch.manual_seed(0)
    routing = made.route(x, sequence_of(made, T=20_000))
    first, second = routing.weights[0].tolist()
    assert first + second == pytest.approx(1)
    taken = (routing.wanted[:, 1] < 4).double().mean().item()
    assert abs(taken - 2 * second) < 4 * (2 * second * (1 - 2 * second) / 20_000) ** 0.5
    assert (made.eval().route(x, sequence_of(made, T=20_000)).experts < 4).all()


def test_first_choices_are_seated_before_second_ones():
    """Room for one: token 1's first choice takes the place that token 0 wanted as its second."""
    made = GShard(LayerContext(d_model=2, vocab_size=9, max_length=2, n_experts=2), capacity_factor=1.0)
    with torch.no_grad():
        made.scores.weight.copy_(torch.eye(2))
    x = torch.tensor([[[0.01, 0.0], [0.0, 0.01]]])
    torch.manual_seed(0)
    routing = made.route(x, sequence_of(made, T=2))
    assert routing.wanted.tolist() == [[0, 1], [1, 0]]
    assert routing.experts.tolist() == [[0, 2], [1, 2]]
    torch.testing.assert_close(routing.weights[:, 0], torch.full((2,), torch.tensor(0.01).sigmoid()))


def test_a_single_expert_is_refused():
    with pytest.raises(ValueError, match="k is 2, n_experts 1"):
        router(1)
