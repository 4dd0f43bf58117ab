"""Clipped losses, case by case."""

import pytest
import torch
from bakeoff_align.objectives.policy.clipping import (
    clipped_policy_loss,
    clipped_value_loss,
    is_clipped,
    naive_clipped_policy_loss,
)

CLIP = {"low": 0.2, "high": 0.3}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 2.0, -2.4, -2.0),
        (1.5, 2.0, -2.6, 0.0),  # far enough up: pulled no further
        (0.5, 2.0, -1.0, -2.0),  # down, though it is good: pulled back
        (0.5, -2.0, 1.6, 0.0),  # far enough down
        (1.5, -2.0, 3.0, 2.0),
        (0.5, 0.0, 0.0, 0.0),
    ],
)
def test_the_policys_loss_and_where_it_has_no_gradient(ratio, advantage, loss, slope):
    r = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    a = torch.tensor(advantage, dtype=torch.float64)
    found = clipped_policy_loss(r, a, **CLIP)
    (pulled,) = torch.autograd.grad(found, r)
    assert found.item() == pytest.approx(loss)
    assert float(pulled) == slope
    assert bool(is_clipped(r, a, **CLIP)) == (slope == 0 and advantage != 0)
    assert naive_clipped_policy_loss(ratio, advantage, **CLIP) == pytest.approx(loss)


@pytest.mark.parametrize(
    ("value", "returns", "loss", "slope"),
    [
        (1.1, 2.0, 0.405, -0.9),  # within the clip: 0.9^2 / 2
        (1.5, 2.0, 0.32, 0.0),  # clipped to 1.2, which is worse: 0.8^2 / 2, and pulled no further
        (0.5, 2.0, 1.125, -1.5),  # away from the return: 1.5^2 / 2
    ],
)
def test_the_values_loss_by_hand(value, returns, loss, slope):
    v = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    found = clipped_value_loss(v, torch.tensor(1.0), torch.tensor(returns), clip=0.2)
    (pulled,) = torch.autograd.grad(found, v)
    assert found.item() == pytest.approx(loss)
    assert float(pulled) == pytest.approx(slope)
