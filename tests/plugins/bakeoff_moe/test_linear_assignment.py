"""`linear_assignment` and its auction against `scipy.optimize.linear_sum_assignment`."""

import numpy as np
import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff_moe import LinearAssignment
from bakeoff_moe.auction import assign
from scipy.optimize import linear_sum_assignment


def best(scores, room):
    """The largest sum, each column repeated as often as it has room."""
    repeated = np.repeat(scores.double().numpy(), room.numpy(), axis=1)
    rows, columns = linear_sum_assignment(repeated, maximize=True)
    return repeated[rows, columns].sum()


def random_scores(kind, N, E, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(N, E, generator=generator)
    if kind == "one favourite":  # all tokens want the same expert
        return 0.1 * scores + torch.linspace(0, 3, E)
    if kind == "few values":  # ties
        return (2 * scores).round()
    if kind == "alike tokens":
        return scores[:1].expand(N, E) + 1e-3 * scores
    if kind == "far from zero":
        return scores + 1e4
    return scores


def room_for(N, E):
    room = torch.full((E,), N // E)
    room[: N % E] += 1
    return room


@pytest.mark.parametrize("kind", ["normal", "one favourite", "few values", "alike tokens", "far from zero"])
@pytest.mark.parametrize(("N", "E"), [(64, 8), (64, 2), (61, 8), (7, 4), (3, 8), (12, 12), (5, 1)])
def test_the_auction_finds_the_largest_sum_with_every_place_taken(kind, N, E):
    for seed in range(3):
        scores, room = random_scores(kind, N, E, seed), room_for(N, E)
        columns = assign(scores, room)
        assert torch.equal(torch.bincount(columns, minlength=E), room)
        got = scores.double().gather(1, columns[:, None]).sum().item()
        assert got == pytest.approx(best(scores, room), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "one favourite"])
def test_the_auction_with_many_rows(kind):
    scores, room = random_scores(kind, 1000, 16, 0), room_for(1000, 16)
    columns = assign(scores, room)
    assert torch.equal(torch.bincount(columns, minlength=16), room)
    assert scores.double().gather(1, columns[:, None]).sum().item() == pytest.approx(best(scores, room), rel=1e-6)


def test_the_auction_ends_whatever_the_scores():
    room = torch.tensor([2, 2, 1])
    for odd in (torch.nan, torch.inf, -torch.inf, 3e38):
        scores = random_scores("normal", 5, 3, 0)
        scores[1, 2] = scores[3, 0] = odd
        assert torch.equal(torch.bincount(assign(scores, room), minlength=3), room)
    assert assign(torch.zeros(0, 3), torch.zeros(3, dtype=torch.long)).shape == (0,)


def router(E=4):
    made = LinearAssignment(LayerContext(d_model=8, vocab_size=9, max_length=64, n_experts=E))
    initialise(made, seed=0)
    return made


def inputs(B, T):
    return torch.randn(B, T, 8, generator=torch.Generator().manual_seed(1))


def test_in_training_the_real_tokens_of_the_batch_share_the_experts_out():
    made, x = router().train(), inputs(3, 11)
    real = torch.arange(11) >= torch.tensor([[0], [4], [11]])  # 11 + 7 + 0 tokens: 18 = 5 + 5 + 4 + 4
    routing = made.route(x, Sequence(torch.zeros(3, 11, dtype=torch.long), real=real))
    experts, kept = routing.experts[:, 0], real.flatten()
    assert (experts[~kept] == 4).all()
    counts = torch.bincount(experts[kept], minlength=4)
    assert sorted(counts.tolist()) == [4, 4, 5, 5]
    scores = (x.flatten(0, 1) @ made.scores.weight.T).detach()[kept]
    first = torch.bincount(scores.argmax(1), minlength=4)
    assert first[counts == 5].min() >= first[counts == 4].max()  # one more goes to those that most tokens want
    got = scores.gather(1, experts[kept, None])
    assert got.double().sum().item() == pytest.approx(best(scores, counts), rel=1e-6)
    torch.testing.assert_close(routing.weights[kept], got.sigmoid())


def test_no_real_token_in_training():
    x = inputs(1, 3)
    sequence = Sequence(torch.zeros(1, 3, dtype=torch.long), real=torch.zeros(1, 3, dtype=torch.bool))
    assert (router().train().route(x, sequence).experts == 4).all()


def test_in_evaluation_each_token_takes_its_best():
    made, x = router().eval(), inputs(2, 9)
    routing = made.route(x, Sequence(torch.zeros(2, 9, dtype=torch.long)))
    scores = x.flatten(0, 1) @ made.scores.weight.T
    assert torch.equal(routing.experts[:, 0], scores.argmax(1))
    torch.testing.assert_close(routing.weights[:, 0], scores.amax(1).sigmoid())
