"""Estimates of the KL divergence by enumeration, and the coefficient's steering by hand."""

import pytest
import torch
from bakeoff_align.objectives.policy.kl import Coefficient, k1, k3


def categorical(seed):
    logits = torch.randn(10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * logits).log_softmax(-1)


@pytest.mark.parametrize("seed", range(5))
def test_both_estimates_have_the_mean_of_the_divergence(seed):
    log_p, reference = categorical(seed), categorical(seed + 100)
    wanted = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=log_p), torch.distributions.Categorical(logits=reference)
    )
    for estimate in (k1, k3):
        found = (log_p.exp() * estimate(log_p, reference)).sum()
        assert abs(float(found - wanted)) < 1e-12


def test_one_token_by_hand_and_what_its_gradient_depends_on():
    for reference in (-2.0, -3.0):
        log_p = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(k1(log_p, torch.tensor(reference)), log_p)
        assert slope == 1  # whatever the reference: no loss
    log_p = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    value = k3(log_p, torch.tensor(-2.0, dtype=torch.float64))
    (slope,) = torch.autograd.grad(value, log_p)
    assert k1(log_p, torch.tensor(-2.0)).item() == 1
    assert value.item() == pytest.approx(0.3679, abs=5e-5)
    assert float(slope) == pytest.approx(0.6321, abs=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_k3_is_never_negative_even_where_the_two_nearly_agree(dtype):
    size = 10 ** torch.linspace(-12, 1, 20000, dtype=torch.float64)
    far = torch.cat([-size, size, torch.zeros(1)]).to(dtype)
    assert float(k3(torch.zeros_like(far), far).min()) >= 0


def test_a_fixed_coefficient_is_not_steered_and_is_no_state():
    fixed = Coefficient(0.5, target=None)
    fixed.steer(100.0)
    assert float(fixed.value) == 0.5
    assert not fixed.state_dict()


def test_steering_by_hand():
    # Ziegler et al. 2019: e = clip((KL - target) / target, -0.2, 0.2), beta (1 + 0.1 e)
    steered = Coefficient(1.0, target=6.0)
    for kl, wanted in [(60.0, 1.02), (6.6, 1.02 * 1.01), (6.0, 1.02 * 1.01), (0.0, 1.02 * 1.01 * 0.98)]:
        steered.steer(kl)
        assert float(steered.value) == pytest.approx(wanted, rel=1e-6)
    again = Coefficient(1.0, target=6.0)
    again.load_state_dict(steered.state_dict())
    assert torch.equal(again.value, steered.value)
