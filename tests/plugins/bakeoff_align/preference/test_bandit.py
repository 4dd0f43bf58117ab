"""A four-armed bandit of known rewards: where DPO comes to rest on preferences by those rewards."""

import pytest
import torch
from bakeoff_align.objectives.preference.dpo import DPO

from tests.plugins.bakeoff_align.policy.models_of_policy import Arms

REFERENCE = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
REWARDS = torch.tensor([0.0, 0.5, 1.0, 0.2], dtype=torch.float64)
TRIALS = 500  # of each two arms


def preferences():
    """Every two arms, as often in each order as the Bradley-Terry model of the rewards prefers one to the other."""
    found = []
    for one in range(4):
        for other in range(one):
            ahead = round(float(torch.sigmoid(REWARDS[one] - REWARDS[other])) * TRIALS)
            found += [(one, other)] * ahead + [(other, one)] * (TRIALS - ahead)
    arms = torch.tensor(found).flatten()
    weights = torch.tensor([[0.0, 1.0]]).expand(len(arms), 2)
    return {"tokens": torch.stack([torch.zeros_like(arms), arms], 1), "weights": weights, "documents": None}


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_dpo_ends_at_the_optimum_of_the_reward(beta):
    model, objective, batch = Arms(REFERENCE), DPO(beta=beta), preferences()
    objective.attach(model, 0)
    optimizer = torch.optim.LBFGS([model.head.logits], max_iter=30, line_search_fn="strong_wolfe")

    def step():
        optimizer.zero_grad()
        total, weight = objective(model, batch)[0]["loss"]
        (total / weight).backward()
        return (total / weight).detach()

    optimizer.step(step)
    wanted = (REFERENCE.log() + REWARDS / beta).softmax(0)
    assert float((model.policy - wanted).abs().sum() / 2) < 0.02
    assert float((REFERENCE - wanted).abs().sum() / 2) > 0.1
