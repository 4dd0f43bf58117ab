"""`expert_choice`: every expert takes exactly its share, of what it may choose from."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff_moe import ExpertChoice, MixtureOfExperts

D, E = 8, 4


def router(n_experts=E, **arguments):
    made = ExpertChoice(LayerContext(d_model=D, vocab_size=9, max_length=128, n_experts=n_experts), **arguments)
    initialise(made, seed=0)
    return made


def inputs(B, T):
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1))


def sequence_of(x, **described):
    return Sequence(torch.zeros(x.shape[:2], dtype=torch.long), **described)


def loads(experts):
    return torch.bincount(experts.flatten(), minlength=E + 1)[:E].tolist()


def test_all_loads_are_exactly_equal_and_some_tokens_are_left_out():
    x = inputs(2, 64)
    experts = router(capacity=1.0).route(x, sequence_of(x)).experts.view(2, 64, E)
    for row in experts:
        assert loads(row) == [16] * 4  # 64 tokens x 1 / 4
    per_token = (experts < E).sum(-1)
    assert (per_token == 0).any()
    assert (per_token > 1).any()


def test_an_expert_takes_the_tokens_that_score_highest_for_it():
    made, x = router(capacity=1.5), inputs(1, 16)
    routing = made.route(x, sequence_of(x))
    p = (x[0] @ made.scores.weight.T).softmax(-1)
    for e in range(E):
        taken = (routing.experts == e).any(1).nonzero()[:, 0]
        assert set(taken.tolist()) == set(p[:, e].topk(6).indices.tolist())  # 16 x 1.5 / 4
        torch.testing.assert_close(routing.weights[taken, e], p[taken, e])


def test_equal_scores_go_to_the_earlier_tokens():
    made = router(capacity=1.0)
    x = torch.ones(1, 8, D)
    experts = made.route(x, sequence_of(x)).experts
    assert (experts < E).all(1).tolist() == [True, True] + [False] * 6


def test_padding_is_not_chosen_and_does_not_count_and_documents_choose_apart():
    x = inputs(2, 24)
    real = torch.arange(24) >= torch.tensor([[8], [0]])
    documents = (torch.arange(24) >= 16).long().expand(2, 24)
    experts = router(capacity=2.0).route(x, sequence_of(x, real=real, documents=documents)).experts.view(2, 24, E)
    assert (experts[0, :8] == E).all()
    assert [loads(experts[0, 8:16]), loads(experts[0, 16:])] == [[4] * 4, [4] * 4]  # 8 x 2 / 4
    assert [loads(experts[1, :16]), loads(experts[1, 16:])] == [[8] * 4, [4] * 4]
    nothing = router().route(x, sequence_of(x, real=torch.zeros(2, 24, dtype=torch.bool))).experts
    assert (nothing == E).all()


def test_over_the_batch_each_place_is_shared_by_the_rows():
    made, x = router(over="batch", capacity=2.0), inputs(8, 5)
    experts = made.train().route(x, sequence_of(x)).experts.view(8, 5, E)
    for t in range(5):
        assert loads(experts[:, t]) == [4] * 4  # 8 rows x 2 / 4
    p = (x[:, 3] @ made.scores.weight.T).softmax(-1)
    assert set((experts[:, 3] == 1).any(1).nonzero()[:, 0].tolist()) == set(p[:, 1].topk(4).indices.tolist())
    real = torch.ones(8, 5, dtype=torch.bool)
    real[:4, 0] = False
    experts = made.route(x, sequence_of(x, real=real)).experts.view(8, 5, E)
    assert loads(experts[:, 0]) == [2] * 4
    assert (experts[:4, 0] == E).all()


@pytest.mark.parametrize(("capacity", "k"), [(0.4, 1), (1.0, 1), (1.5, 2), (2.4, 2), (3.5, 4)])
def test_over_the_batch_in_evaluation_each_token_takes_its_best(capacity, k):
    made, x = router(over="batch", capacity=capacity).eval(), inputs(2, 5)
    routing = made.route(x, sequence_of(x))
    best = (x.flatten(0, 1) @ made.scores.weight.T).softmax(-1).topk(k)
    assert torch.equal(routing.experts, best.indices)
    torch.testing.assert_close(routing.weights, best.values)
    assert made.pairs(5) == 5 * k


def test_a_choice_over_the_sequence_does_not_decode_and_one_over_the_batch_does():
    context = LayerContext(d_model=D, vocab_size=9, max_length=16)

    def mixture(over):
        return MixtureOfExperts(context, n_experts=E, expert=MLP, router=lambda c: ExpertChoice(c, over=over))

    with pytest.raises(ValueError, match=r"ExpertChoice routes whole sequences and cannot decode .* such as top_k"):
        mixture("sequence").empty_state(1, 4)
    assert mixture("batch").empty_state(1, 4) == ()


def test_parameters_count_as_active_by_the_capacity():
    made = router(n_experts=8, capacity=2.0)
    assert made.active() == 2
    assert made.pairs(64) == 128  # 8 experts take 64 x 2 / 8


@pytest.mark.parametrize("capacity", [0.0, 4.0])
def test_wrong_capacity(capacity):
    with pytest.raises(
        ValueError, match=rf"capacity is {capacity}, n_experts 4; it must lie in 0 < capacity < n_experts"
    ):
        router(capacity=capacity)
