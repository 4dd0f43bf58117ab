"""The fused loss against its naive twin and against torch's cross-entropy."""

import math

import pytest
import torch
from bakeoff.parts.fused_loss import capped, fused_loss, naive_loss
from torch.nn import functional as F


def inputs(M=13, D=8, V=17, bias=True, dtype=torch.float64, scale=1.0):
    torch.manual_seed(0)
    hidden = (torch.randn(M, D, dtype=dtype) * scale).requires_grad_()
    weight = torch.randn(V, D, dtype=dtype).requires_grad_()
    b = torch.randn(V, dtype=dtype).requires_grad_() if bias else None
    weights = torch.rand(M, dtype=dtype)
    weights[3] = 0
    return hidden, weight, b, torch.randint(V, (M,)), weights


@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.0), (1e-2, 0.0), (0.0, 0.1), (1e-2, 0.1)])
@pytest.mark.parametrize("chunk", [1, 4, 13, 512])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_naive_twin_with_gradients(soft_cap, z_loss, smoothing, chunk, bias):
    results = []
    for loss in (lambda *a, **k: fused_loss(*a, **k, chunk=chunk), naive_loss):
        hidden, weight, b, targets, weights = inputs(bias=bias)
        options = {"soft_cap": soft_cap, "z_loss": z_loss, "label_smoothing": smoothing}
        total, nats = loss(hidden, weight, b, targets, weights, **options)
        (3 * total).backward()
        results.append([total, nats, hidden.grad, weight.grad, *([b.grad] if bias else [])])
    for ours, twin in zip(*results, strict=True):
        torch.testing.assert_close(ours, twin, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_equals_cross_entropy_of_torch(smoothing):
    hidden, weight, b, targets, weights = inputs()
    total, _ = fused_loss(hidden, weight, b, targets, weights, label_smoothing=smoothing)
    theirs = F.cross_entropy(F.linear(hidden, weight, b), targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(total, (theirs * weights).sum(), rtol=1e-12, atol=1e-12)


def test_z_loss_of_zero_logits_is_the_square_of_log_v():
    hidden, weight = torch.zeros(1, 4, dtype=torch.float64), torch.zeros(8, 4, dtype=torch.float64)
    total, nats = fused_loss(hidden, weight, None, torch.tensor([0]), torch.ones(1), z_loss=1.0)
    assert nats.item() == pytest.approx(math.log(8))
    assert total.item() - nats.item() == pytest.approx(4.324077125)


def test_the_slope_of_z_loss_is_twice_the_log_sum_exp_times_the_softmax():
    M, V, zeta = 6, 9, 0.3
    torch.manual_seed(0)
    logits = torch.randn(M, V, dtype=torch.float64)
    targets, weights = torch.zeros(M, dtype=torch.long), torch.full((M,), 1 / M, dtype=torch.float64)  # the mean

    def penalty(logits):
        total, nats = fused_loss(logits, torch.eye(V, dtype=torch.float64), None, targets, weights, z_loss=zeta)
        return total - nats

    def slope(z_loss):
        x = logits.clone().requires_grad_()
        fused_loss(x, torch.eye(V, dtype=torch.float64), None, targets, weights, z_loss=z_loss)[0].backward()
        return x.grad

    lse = logits.logsumexp(-1, keepdim=True)
    formula = 2 * zeta * lse * logits.softmax(-1) / M
    torch.testing.assert_close(slope(zeta) - slope(0.0), formula, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(penalty(logits), zeta * lse.square().mean(), atol=1e-12, rtol=1e-12)
    for m, v in ((0, 0), (2, 5), (5, 8)):
        step = torch.zeros_like(logits)
        step[m, v] = 1e-5
        difference = (penalty(logits + step) - penalty(logits - step)) / 2e-5
        torch.testing.assert_close(difference, formula[m, v], atol=1e-6, rtol=1e-6)


def test_a_soft_cap_bounds_and_leaves_small_logits():
    x = torch.tensor([0.0, 1e-3, -1e-3, 25.0, -25.0, 1e9, -1e9], dtype=torch.float64, requires_grad=True)
    y = capped(x, 30.0)
    assert (y.abs() <= 30).all()
    y.sum().backward()
    assert x.grad[0] == 1
    torch.testing.assert_close(y[1:3], x[1:3], rtol=1e-8, atol=0)
    assert (y[3:5].abs() < 25).all()
    assert y[5:].tolist() == [30.0, -30.0]


def test_without_gradients_nothing_is_formed_for_backward():
    hidden, weight, b, targets, weights = inputs()
    with torch.no_grad():
        total, nats = fused_loss(hidden, weight, b, targets, weights)
    assert not total.requires_grad
    torch.testing.assert_close(total, nats)


def test_all_weights_zero_gives_zero_and_zero_gradients():
    hidden, weight, b, targets, weights = inputs()
    total, _ = fused_loss(hidden, weight, b, targets, torch.zeros_like(weights))
    total.backward()
    assert total.item() == 0
    assert hidden.grad.abs().max() == weight.grad.abs().max() == 0


def test_frozen_matrix_gets_no_gradient():
    hidden, weight, _, targets, weights = inputs()
    total, _ = fused_loss(hidden, weight.detach(), None, targets, weights)
    total.backward()
    assert hidden.grad is not None


def test_bfloat16_autocast_keeps_the_loss_in_float32():
    hidden, weight, _, targets, weights = inputs(bias=False, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = fused_loss(hidden, weight, None, targets, weights)
    total.backward()
    exact, _ = naive_loss(hidden.detach(), weight.detach(), None, targets, weights)
    assert total.dtype == torch.float32
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(total.detach(), exact, rtol=2e-2, atol=2e-2)


def test_extreme_logits_stay_finite():
    hidden, weight, b, targets, weights = inputs(dtype=torch.float32, scale=1e4)
    total, _ = fused_loss(hidden, weight, b, targets, weights)
    total.backward()
    assert all(t.isfinite().all() for t in (total, hidden.grad, weight.grad))
