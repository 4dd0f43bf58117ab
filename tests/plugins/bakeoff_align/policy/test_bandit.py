"""A four-armed bandit of known rewards: where each objective comes to rest.

A collection holds each arm as often as the policy draws it on average, to within one of five hundred: nothing is left
to chance. With KL in the reward the optimum is `ref e^(r / beta) / Z`; with k3 in the loss, whose gradient is
`1 - ref / p`, it is `beta ref / (c - r)`, c such that it adds up to 1.
"""

import pytest
import torch
from bakeoff_align.objectives.policy.grpo import GRPO
from bakeoff_align.objectives.policy.ppo import PPO
from bakeoff_align.objectives.policy.rloo import RLOO
from bakeoff_align.rewards.length_reward import LengthReward
from scipy.optimize import brentq

from tests.plugins.bakeoff_align.policy.models_of_policy import Arms, noted

REFERENCE = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
REWARDS = torch.tensor([0.0, 0.5, 1.0, 0.2], dtype=torch.float64)
N = 500


def of_reward(beta):
    """The optimum of the reward less beta KL."""
    return (REFERENCE.log() + REWARDS / beta).softmax(0)


def of_loss(beta):
    """Where the gradient of the mean reward less that of beta k3, of arms drawn by the policy itself, is nil."""

    def policy(c):
        return beta * REFERENCE / (c - REWARDS)

    top = float(REWARDS.max())
    return policy(brentq(lambda c: float(policy(c).sum()) - 1, top + 1e-9, top + beta + 1, xtol=1e-14))


def distance(one, other):
    """Total variation."""
    return float((one - other).abs().sum() / 2)


def drawn(policy):
    """Each arm as often as it is drawn of N times; the largest remainders are rounded up."""
    counts = (policy * N).floor().long()
    first = (policy * N - counts).argsort(descending=True)
    counts[first[: N - int(counts.sum())]] += 1
    arms = torch.arange(4).repeat_interleave(counts)
    weights = torch.tensor([[0.0, 1.0]]).expand(N, 2).double()
    rows = {"tokens": torch.stack([torch.zeros_like(arms), arms], 1), "real": weights >= 0, "weights": weights}
    rows["text_size"] = torch.full((N,), 4)
    return rows | {"length": weights.sum(1), "gap": torch.zeros(N).double(), "reward": REWARDS[arms]}


def trained(objective, collections, *, rate, value_rate=0.0):
    """The policy in the end."""
    model = Arms(REFERENCE)
    objective.attach(model, 0)
    learnt = [{"params": [model.head.logits], "lr": rate}]
    learnt += [{"params": [p for p in objective.parameters() if p.requires_grad], "lr": value_rate}]
    optimizer = torch.optim.SGD([group for group in learnt if group["params"]])
    for _ in range(collections):
        rows = noted(objective, model, drawn(model.policy))
        for _ in range(objective.passes):
            optimizer.zero_grad()
            sum(total / weight for total, weight in objective(model, rows)[0].values()).backward()
            optimizer.step()
    return model.policy


def given(beta, **more):
    return {"reward": LengthReward(target=1), "max_new_tokens": 1, "beta": beta, **more}


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_the_two_optima_are_apart(beta):
    assert distance(of_reward(beta), of_loss(beta)) > 0.02
    assert distance(of_reward(beta), REFERENCE) > 0.1
    assert float(of_loss(beta).sum()) == pytest.approx(1)


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_ppo(beta):
    found = trained(PPO(**given(beta, whiten_advantages=False)), 60, rate=1.0, value_rate=1.0)
    assert distance(found, of_reward(beta)) < 0.02


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_rloo(beta):
    found = trained(RLOO(**given(beta, group=N)), 80, rate=5.0)
    assert distance(found, of_reward(beta)) < 0.02


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_grpo_with_kl_in_the_reward(beta):
    objective = GRPO(**given(beta, group=N, kl="reward", standardise=False))
    assert distance(trained(objective, 80, rate=5.0), of_reward(beta)) < 0.02


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_grpo_with_k3_in_the_loss(beta):
    objective = GRPO(**given(beta, group=N, kl="loss", standardise=False))
    assert distance(trained(objective, 80, rate=5.0), of_loss(beta)) < 0.02


def test_dividing_by_the_deviation_moves_the_rest_elsewhere():
    found = trained(GRPO(**given(0.3, group=N, kl="loss", standardise=True)), 80, rate=5.0)
    assert distance(found, of_loss(0.3)) > 0.1
    assert distance(found, of_reward(0.3)) > 0.1
