"""RLOO against the lines of TRL 1.16's trainer."""

import pytest
import torch
from bakeoff_align.objectives.policy.rloo import RLOO
from bakeoff_align.rewards.length_reward import LengthReward

from tests.plugins.bakeoff_align.policy.models_of_policy import Free, collection, noted

LENGTHS, V, G = [4, 1, 3, 4, 2, 4], 5, 3


def rloo(**given):
    return RLOO(**{"reward": LengthReward(target=1), "max_new_tokens": 4, "group": G, **given})


def trl_advantages(rows, beta):
    """`RLOOTrainer._generate_and_score_completions` (TRL 1.16, rloo_trainer.py, lines 1663-1690)."""
    rewards = rows["reward"]
    if beta:
        per_token_kl = rows["old"] - rows["reference"]
        rewards = rewards - beta * (per_token_kl * rows["weights"]).sum(-1)
    grouped_rewards = rewards.view(-1, G)
    grouped_sum = grouped_rewards.sum(dim=1, keepdim=True)
    baselines = (grouped_sum - grouped_rewards) / (G - 1)
    return rewards - baselines.view(-1)


def trl_loss(logits, rows):
    """`RLOOTrainer._compute_loss` (TRL 1.16, rloo_trainer.py, lines 1822-1833)."""
    mask, targets = rows["weights"][:, 1:], rows["tokens"][:, 1:]
    per_token_logps = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    log_ratio = (per_token_logps * mask).sum(1) - rows["old"].sum(1)
    coef_1 = torch.exp(log_ratio)
    coef_2 = torch.clamp(coef_1, 0.8, 1.2)
    return -torch.min(coef_1 * rows["advantages"], coef_2 * rows["advantages"]).mean()


def moved(objective, rows, by=0.3):
    """A model that has gone on since `rows` were collected from it, and the rows."""

    def numbers(seed):
        shape = (len(rows["tokens"]), rows["tokens"].shape[1] - 1, V)
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    model = Free(numbers(0))
    objective.attach(model, 0)
    with torch.no_grad():
        model.logits.add_(0.5 * numbers(1))
    rows = noted(objective, model, rows)
    with torch.no_grad():
        model.logits.add_(by * numbers(2))
    return model, rows


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_advantages_loss_and_gradient_are_those_of_trl(beta):
    objective = rloo(beta=beta)
    model, rows = moved(objective, collection(LENGTHS, prompt=2))
    torch.testing.assert_close(rows["advantages"], trl_advantages(rows, beta), atol=1e-12, rtol=0)
    terms, statistics = objective(model, rows)
    ours, theirs = terms["loss"][0] / terms["loss"][1], trl_loss(model.logits, rows)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    slopes = [torch.autograd.grad(loss, model.logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*slopes, atol=1e-12, rtol=0)
    clipped, answers = statistics["mean.clipped"].tolist()
    assert 0 < clipped < answers == len(LENGTHS)


def test_its_first_gradient_is_that_of_reinforce():
    objective = rloo(beta=0.0)
    model, rows = moved(objective, collection(LENGTHS), by=0.0)
    total, weight = objective(model, rows)[0]["loss"]
    mask, targets = rows["weights"][:, 1:], rows["tokens"][:, 1:]
    log_p = model.logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    plain = -((log_p * mask).sum(1) * rows["advantages"]).mean()
    slopes = [torch.autograd.grad(loss, model.logits)[0] for loss in (total / weight, plain)]
    torch.testing.assert_close(*slopes, atol=1e-12, rtol=0)


def test_groups_that_are_judged_alike_have_exactly_no_gradient_and_are_counted():
    reward = torch.tensor([0.1, 0.1, 0.1, 0.0, 1.0, 0.0]).double()
    objective = rloo(beta=0.0)
    model, rows = moved(objective, collection(LENGTHS) | {"reward": reward})
    terms, statistics = objective(model, rows)
    (slope,) = torch.autograd.grad(terms["loss"][0], model.logits)
    assert not slope[:3].any()
    assert slope[3:].any()
    assert statistics["mean.degenerate_groups"].tolist() == [3.0, 6.0]
