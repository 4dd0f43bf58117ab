"""`noisy_top_k` against counted draws, and the losses that balance it by hand."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Routing, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff_moe import ExpertLoad, Importance, NoisyTopK
from bakeoff_moe.noisy_top_k import chance_of_inclusion
from torch.nn import functional as F

D, E, K, T = 5, 6, 2, 7
NOWHERE = Sequence(torch.zeros(1, T, dtype=torch.long))


def router(k=K):
    made = NoisyTopK(LayerContext(d_model=D, vocab_size=9, max_length=T, n_experts=E), k=k)
    initialise(made, seed=0)
    return made


def moved(made):
    """Scores and noise that differ between tokens."""
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


def inputs():
    return torch.randn(1, T, D, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_inclusion_is_how_often_an_expert_is_chosen_when_its_noise_alone_is_drawn_anew(k):
    g = torch.Generator().manual_seed(0)
    draws = 200_000
    clean, deviation = torch.randn(1, E, generator=g).double(), F.softplus(torch.randn(1, E, generator=g).double())
    noisy = clean + torch.randn(1, E, generator=g) * deviation
    chances = chance_of_inclusion(clean, noisy, deviation, k)[0]
    for i in range(E):
        anew = noisy.repeat(draws, 1)
        anew[:, i] = clean[0, i] + torch.randn(draws, generator=g) * deviation[0, i]
        counted = (anew.topk(k).indices == i).any(1).double().mean()
        error = (chances[i] * (1 - chances[i]) / draws).sqrt().clamp_min(1 / draws)
        assert abs(counted - chances[i]) / error < 3.5


def test_training_draws_noise_and_evaluation_does_not():
    made, x = moved(router()), inputs()
    torch.manual_seed(0)
    first, second = made.route(x, NOWHERE), made.route(x, NOWHERE)
    assert not torch.equal(first.logits, second.logits)
    torch.manual_seed(0)
    noise = torch.randn(T, E)
    deviation = F.softplus(F.linear(x[0], made.noise.weight))
    torch.testing.assert_close(first.logits, F.linear(x[0], made.scores.weight) + noise * deviation)
    made.eval()
    quiet = made.route(x, NOWHERE)
    torch.testing.assert_close(quiet.logits, F.linear(x[0], made.scores.weight))
    assert quiet.inclusion is None


def test_weights_are_the_softmax_over_the_chosen_scores():
    routing = moved(router(k=3)).route(inputs(), NOWHERE)
    for token in range(T):
        scores = routing.logits[token].tolist()
        best = sorted(range(E), key=lambda e: -scores[e])[:3]
        assert routing.experts[token].tolist() == best
        torch.testing.assert_close(routing.weights[token], routing.logits[token, best].softmax(-1))


def test_it_begins_with_equal_scores_so_that_noise_alone_chooses():
    made = router()
    assert all(not parameter.any() for parameter in made.parameters())
    torch.manual_seed(0)
    routing = made.route(torch.randn(1, 3000, D), Sequence(torch.zeros(1, 3000, dtype=torch.long)))
    counts = torch.bincount(routing.experts.flatten(), minlength=E)
    expected = 3000 * K / E
    assert (counts - expected).abs().max() < 5 * (expected * (1 - K / E)) ** 0.5


def test_chances_have_finite_gradients_where_noise_vanishes():
    made, x = moved(router()), 1e4 * inputs()
    routing = made.route(x, NOWHERE)
    routing.inclusion.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in made.parameters())


@pytest.mark.parametrize("k", [1, E])
def test_noise_needs_experts_to_choose_from(k):
    with pytest.raises(ValueError, match=f"k is {k}, n_experts {E}"):
        router(k=k)


def routed(gates, chances):
    """Routing with these weights (N, E) of all experts, and these chances."""
    experts = torch.arange(gates.shape[1]).expand(len(gates), -1)
    return Routing(experts, gates, probabilities=gates, inclusion=chances)


def one_has_all(n):
    return torch.tensor([[1.0] + [0.0] * (n - 1)] * 5)


@pytest.mark.parametrize("balance", [Importance(coefficient=0.5), ExpertLoad(coefficient=0.5)])
@pytest.mark.parametrize(
    ("values", "variation"),
    [
        (torch.full((5, 4), 0.25), 0.0),
        (one_has_all(4), 3.0),
        (one_has_all(8), 7.0),
        (torch.tensor([[3.0, 1.0]]), 0.25),
        (torch.zeros(2, 4), 0.0),
    ],
)
def test_the_squared_coefficient_of_variation(balance, values, variation):
    sums = balance.sums(routed(values, values), None, NOWHERE)
    assert balance.loss(sums).item() == pytest.approx(0.5 * variation, abs=1e-7)


@pytest.mark.parametrize("balance", [Importance(), ExpertLoad()])
def test_padding_has_no_part_in_it(balance):
    g = torch.Generator().manual_seed(0)
    gates, real = torch.rand(6, 4, generator=g), torch.tensor([True, True, False, True, True, False])
    with_padding = balance.sums(routed(gates, gates), real, NOWHERE)
    alone = balance.sums(routed(gates[real], gates[real]), None, NOWHERE)
    for name, value in alone.items():
        torch.testing.assert_close(with_padding[name], value)


def test_choices_that_are_not_taken_have_no_importance():
    routing = Routing(torch.tensor([[0, 2], [2, 2]]), torch.full((2, 2), 0.5), probabilities=torch.full((2, 2), 0.5))
    assert Importance().sums(routing, None, NOWHERE)["gates"].tolist() == [0.5, 0.0]
