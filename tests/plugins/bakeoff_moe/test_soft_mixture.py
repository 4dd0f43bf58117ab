"""`soft_mixture` by its equations, token by token."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff_moe import LoadBalance, MixtureOfExperts, SoftMixture

D, E, S = 8, 3, 2


def mixture(slots=S, **more):
    made = MixtureOfExperts(
        LayerContext(d_model=D, vocab_size=9, max_length=64), n_experts=E, expert=MLP,
        router=lambda c: SoftMixture(c, slots=slots), **more,
    )  # fmt: skip
    initialise(made, seed=0)
    return made


def inputs(B=2, T=5):
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1))


def sequence_of(x, **described):
    return Sequence(torch.zeros(x.shape[:2], dtype=torch.long), **described)


def test_slots_mix_tokens_and_tokens_mix_slots():
    made, x = mixture(), inputs()
    with torch.no_grad():
        made.router.scores.scale.fill_(3.0)
    y = made(x, sequence_of(x)).y
    phi = made.router.scores.weight
    for b in range(2):
        scores = torch.stack([
            torch.stack([3.0 * torch.cosine_similarity(token, slot, dim=0) for slot in phi]) for token in x[b]
        ])  # fmt: skip
        want = torch.zeros(5, D)
        for s in range(E * S):
            read = scores[:, s].softmax(0) @ x[b]
            written = made.experts.alone(s // S, read[None], sequence_of(x))[0]
            want += scores.softmax(1)[:, s, None] * written
        torch.testing.assert_close(y[b], want, atol=1e-5, rtol=1e-5)


def test_weights_of_slots_and_of_tokens_sum_to_one_over_real_tokens():
    made, x = mixture(), inputs(3)
    real = torch.arange(5) < torch.tensor([[5], [2], [0]])
    slots = made.router.route(x, sequence_of(x, real=real))
    assert slots.dispatch.shape == (3, E, S, 5)
    assert slots.combine.shape == (3, 5, E, S)
    some = real.any(1).float()[:, None, None].expand(3, E, S)
    torch.testing.assert_close(slots.dispatch.sum(-1), some)
    assert (slots.dispatch[~real[:, None, None].expand(3, E, S, 5)] == 0).all()
    torch.testing.assert_close(slots.combine.sum((2, 3)), real.float())


def test_the_size_of_a_token_does_not_change_its_scores():
    made, x = mixture(), inputs()
    for one, other in zip(made.router(x, sequence_of(x)), made.router(7 * x, sequence_of(x)), strict=True):
        if torch.is_tensor(one):
            torch.testing.assert_close(one, other)


def test_a_token_sees_other_documents_which_is_why_none_is_claimed():
    made, x = mixture(), inputs()
    documents = torch.tensor([[0, 0, 1, 1, 1]] * 2)
    before = made(x, sequence_of(x, documents=documents)).y
    x[:, :2] += 1.0
    assert not torch.allclose(made(x, sequence_of(x, documents=documents)).y[:, 2:], before[:, 2:])
    assert not made.capabilities.documents
    assert not made.capabilities.causal


def test_without_slots_every_expert_reads_every_token():
    made, x = mixture(None), inputs()
    y = made(x, sequence_of(x)).y.flatten(0, 1)
    tokens = x.flatten(0, 1)
    weights = (tokens @ made.router.scores.weight.T).softmax(-1)
    want = sum(weights[:, e, None] * made.experts.alone(e, tokens, sequence_of(x)) for e in range(E))
    torch.testing.assert_close(y, want, atol=1e-5, rtol=1e-5)
    assert made.capabilities.causal
    assert made.experts.idle() == 0


def test_cost_grows_with_tokens_by_the_scores_and_with_slots_by_the_experts():
    made = mixture()
    expert = 2 * 2 * D * made.experts.one.up.weight.shape[-2]
    for T in (1, 10):
        assert made.flops(T, T) == E * S * expert + 3 * 2 * T * D * E * S


def test_what_does_not_fit():
    with pytest.raises(ValueError, match="slots is 0; an expert has at least 1, or null"):
        mixture(0)
    with pytest.raises(ValueError, match="balance load_balance reads probabilities, which SoftMixture does not give"):
        mixture(2, balance=[LoadBalance()])
    mixture(None, balance=[LoadBalance()])
    with pytest.raises(ValueError, match="SoftMixture routes whole sequences and cannot decode"):
        mixture().empty_state(1, 4)
