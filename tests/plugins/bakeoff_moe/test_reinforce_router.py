"""`reinforce_router`: the policy gradient by hand, and on a bandit."""

import math
from functools import partial

import pytest
import torch
from bakeoff.interfaces import Feedback, LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.model import LanguageModel
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.train.sums import StepSums
from bakeoff_moe import MixtureOfExperts, ReinforceRouter
from torch.utils.checkpoint import checkpoint

D, E, V = 8, 3, 11


def router(**arguments):
    made = ReinforceRouter(LayerContext(d_model=D, vocab_size=V, max_length=64, n_experts=E), **arguments)
    initialise(made, seed=0)
    return made


def routed(made, x):
    routing = made(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long)))
    return routing, routing.memory.get("feedback.0")


def model(depth=2, d_model=D, coefficient=0.1, **expert):
    def mixture(c):
        return MixtureOfExperts(
            c, n_experts=E, expert=partial(MLP, **expert), router=partial(ReinforceRouter, coefficient=coefficient)
        )

    backbone = partial(
        Decoder, depth=depth, pattern=["a"], blocks={"a": lambda c: PreNorm(c, mixer=None, feed_forward=mixture)}
    )
    return LanguageModel(d_model=d_model, vocab_size=V, max_length=16, backbone=backbone).initialise(seed=0)


def tokens(rows=4, length=7):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(2))


def test_the_gradient_is_that_of_the_score_function():
    made = router(coefficient=0.5).train()
    x = torch.randn(2, 6, D, generator=torch.Generator().manual_seed(1), requires_grad=True)
    nats = torch.linspace(0.5, 4.0, 12).view(2, 6)
    torch.manual_seed(0)
    routing, feedback = routed(made, x)
    feedback.loss(nats).sum().backward()
    flat, chosen = x.detach().flatten(0, 1), routing.experts[:, 0]
    p = (flat @ made.scores.weight.T).softmax(-1).detach()
    b = (flat @ made.baseline.weight.T).detach()[:, 0] + math.log(V)
    d_logits = 0.5 * (nats.flatten() - b)[:, None] * (torch.nn.functional.one_hot(chosen, E) - p)
    torch.testing.assert_close(made.scores.weight.grad, d_logits.T @ flat)
    torch.testing.assert_close(made.baseline.weight.grad, 0.5 * (b - nats.flatten())[None] @ flat)
    torch.testing.assert_close(made.baseline.bias.grad, 0.5 * (b - nats.flatten()).sum()[None])
    torch.testing.assert_close(x.grad.flatten(0, 1), d_logits @ made.scores.weight)  # none through the baseline


@pytest.mark.parametrize("baseline", [0.0, 2.0, -7.0])
def test_on_average_it_is_the_gradient_of_the_expected_cost_whatever_the_baseline(baseline):
    cost = torch.tensor([3.0, 1.0, 2.5])
    logits = torch.tensor([0.3, -0.2, 1.1], requires_grad=True)
    (want,) = torch.autograd.grad((logits.softmax(0) * cost).sum(), logits)
    p = logits.softmax(0).detach()
    loss = Feedback(logits.log_softmax(0), torch.full((E,), baseline), 1.0).loss(cost)
    (got,) = torch.autograd.grad((p * loss).sum(), logits)
    torch.testing.assert_close(got, want)


def test_experts_are_drawn_as_often_as_the_policy_says_and_are_the_likeliest_in_evaluation():
    made, n = router(), 30_000
    x = torch.randn(1, 1, D, generator=torch.Generator().manual_seed(1)).expand(1, n, D)
    p = (x[0, 0] @ made.scores.weight.T).softmax(-1).detach()
    torch.manual_seed(0)
    routing, feedback = routed(made.train(), x)
    counts = torch.bincount(routing.experts[:, 0], minlength=E)
    assert ((counts - n * p).abs() < 4 * (n * p * (1 - p)).sqrt()).all()
    torch.testing.assert_close(feedback.log_probability[0], p.log()[routing.experts[:, 0]])
    routing, feedback = routed(made.eval(), x)
    assert (routing.experts == p.argmax()).all()
    assert feedback is None


def test_the_baseline_begins_at_the_cost_of_any_token():
    _, feedback = routed(router().train(), torch.zeros(1, 2, D))
    torch.testing.assert_close(feedback.baseline, torch.full((1, 2), math.log(V)))


def test_the_policy_moves_to_the_expert_that_predicts_better():
    lm, good, target = model(depth=1, d_model=V, coefficient=1.0, bias=True), 1, 2
    mixture = lm.backbone.blocks[0].feed_forward
    with torch.no_grad():
        lm.backbone.embed.weight.copy_(torch.eye(V))
        for parameter in mixture.experts.parameters():
            parameter.zero_()
        mixture.experts.down.bias[:, 0] = 5.0
        mixture.experts.down.bias[good] = 5.0 * torch.nn.functional.one_hot(torch.tensor(target), V)
        mixture.router.scores.weight.zero_()
    optimizer = torch.optim.Adam(mixture.router.parameters(), lr=0.05)
    batch, seen = {"tokens": torch.full((4, 9), target)}, []
    mixture.router.register_forward_hook(
        lambda module, given, out: seen.append(out.probabilities[:, good].mean().item())
    )
    torch.manual_seed(0)
    for _ in range(60):
        terms, _ = Causal()(lm, batch)
        (alone,) = torch.autograd.grad(
            terms["loss"][0], mixture.router.scores.weight, retain_graph=True, allow_unused=True
        )
        assert alone is None  # the weight of an expert's output tells nothing
        optimizer.zero_grad()
        sum(total / weight for total, weight in terms.values()).backward()
        optimizer.step()
    assert seen[0] == pytest.approx(1 / 3, abs=1e-6)
    assert seen[-1] > 0.95


def gradients(lm, batches):
    sums = StepSums(nominal=24.0)
    parameters = [p for p in lm.parameters() if p.requires_grad]
    for batch in batches:
        sums.enter(*Causal()(lm, batch)).backward()
    totals = sums.finish(parameters)
    assert "sum.feedback" in totals.places
    return [p.grad for p in parameters]


def test_recomputation_gives_the_same_gradients():
    plain, recomputed = model(), model()
    for block in recomputed.backbone.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    found = []
    for lm in (plain, recomputed):
        torch.manual_seed(0)
        found.append(gradients(lm.train(), [{"tokens": tokens()}]))
    assert all(bool((g != 0).any()) for g in found[0])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_micro_batches_add_up_to_one_batch(monkeypatch):
    monkeypatch.setattr(torch, "rand_like", lambda x: torch.full_like(x, 0.5))
    real = torch.arange(7) < torch.tensor([[7], [3], [5], [7]])
    batch = {"tokens": tokens(), "real": real}
    halves = [{name: t[rows] for name, t in batch.items()} for rows in (slice(0, 2), slice(2, 4))]
    whole, parts = gradients(model().train(), [batch]), gradients(model().train(), halves)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_every_layer_that_chooses_is_heard():
    lm = model().train()
    batch = {"tokens": tokens()}
    terms, _ = Causal()(lm, batch)
    terms["feedback"][0].backward()
    for block in lm.backbone.blocks:
        assert (block.feed_forward.router.scores.weight.grad != 0).any()
    assert "feedback" not in Causal()(lm.eval(), batch)[0]


def test_wrong_coefficient():
    with pytest.raises(ValueError, match=r"coefficient is 0\.0; it must be positive"):
        router(coefficient=0.0)
