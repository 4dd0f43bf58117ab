"""The gated recurrence: scan, loop and single steps; gradients where decays near 1; first tokens; by hand."""

import math

import pytest
import torch
from bakeoff_griffin.recurrence import multiplier, rg_lru, rg_lru_naive, rg_lru_step

B, W = 2, 6


def given(T, floor=-2.0, dtype=torch.float64):
    """x, r, i, floor and a state."""
    generator = torch.Generator().manual_seed(T)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)  # noqa: E731
    floors = torch.full((W,), floor, dtype=dtype)
    return [t.requires_grad_() for t in (*(draw(B, T, W) for _ in range(3)), floors, draw(B, W))]


def firsts(T):
    first = torch.zeros(B, T, dtype=torch.bool)
    first[0, ::9] = True
    first[1, T // 2] = True
    return first


def gradients(form, tensors, probe, **named):
    h, after = form(*tensors[:4], state=tensors[4], **named)
    return h, after, *torch.autograd.grad((h * probe).sum() + 3 * after.sum(), tensors)


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
def test_scan_equals_loop_and_steps(T):
    tensors, first = given(T), firsts(T)
    probe = torch.randn(B, T, W, dtype=torch.float64)
    found, expected = (gradients(form, tensors, probe, first=first) for form in (rg_lru, rg_lru_naive))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    x, r, i, floor, state = (t.detach() for t in tensors)
    rows = []
    for t in range(T):
        here = slice(t, t + 1)
        y, state = rg_lru_step(x[:, here], r[:, here], i[:, here], floor, state, first[:, here])
        rows.append(y)
    torch.testing.assert_close(torch.cat(rows, 1), found[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, found[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
def test_gates_of_all_strengths_in_float32(T):
    """log a in {-1e-3, -1, -20}, mixed."""
    tensors = given(T, floor=-20.0, dtype=torch.float32)
    opened = torch.tensor([1e-3, 1.0, 20.0]) / 20.0
    at = torch.randint(3, (B, T, W), generator=torch.Generator().manual_seed(0))
    tensors[1] = torch.logit(opened)[at].clamp_max(30.0).requires_grad_()
    probe = torch.randn(B, T, W)
    found = gradients(rg_lru, tensors, probe)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    for a, exact in zip(found, gradients(rg_lru_naive, wide, probe), strict=True):
        assert torch.isfinite(a).all()
        assert (a - exact).norm() <= 1e-4 * exact.norm()


@pytest.mark.parametrize("form", [rg_lru, rg_lru_naive])
def test_gradient_where_a_decay_nears_one(form):
    """d sqrt(1 - a^2) / d log a = -2 a^2 / (2 sqrt(1 - a^2)), whose second factor ends at 1000."""
    a = torch.tensor([0.9999, 1 - 1e-7, 1.0], dtype=torch.float64)
    floor = a.log().requires_grad_()
    opened = torch.full((1, 1, 3), torch.inf, dtype=torch.float64)
    h, _ = form(torch.ones_like(opened), opened, opened, floor)
    torch.testing.assert_close(h.flatten(), (1 - a**2).sqrt(), rtol=1e-7, atol=1e-12)
    (slope,) = torch.autograd.grad(h.sum(), floor)
    expected = [-(0.9999**2) / math.sqrt(1 - 0.9999**2), -2 * (1 - 1e-7) ** 2 * 1000, -2000.0]
    torch.testing.assert_close(slope, torch.tensor(expected, dtype=torch.float64))


def test_multiplier_keeps_float32_digits_of_slow_decays():
    """1 - a^2 = 2e-7 to first order, of which float32 arithmetic on a = 1 - 1e-7 keeps one digit."""
    found = multiplier(torch.tensor(-1e-7))
    torch.testing.assert_close(found.item(), math.sqrt(2e-7), rtol=1e-6, atol=0)


def test_first_token_enters_whole_and_forgets():
    """With a = 1/2 and open input gates: h = 1, then 1/2 + sqrt(3)/2, and at the next first token 1 again."""
    opened = torch.full((1, 3, 1), torch.inf)
    first = torch.tensor([[True, False, True]])
    floor, state = torch.tensor([0.5]).log(), torch.full((1, 1), 7.0)
    for form in (rg_lru, rg_lru_naive):
        h, after = form(torch.ones(1, 3, 1), opened, opened, floor, first=first, state=state)
        torch.testing.assert_close(h.flatten(), torch.tensor([1.0, 0.5 + 0.75**0.5, 1.0]))
        torch.testing.assert_close(after.flatten(), torch.ones(1))


def test_shut_gates_leave_the_state_with_a_finite_gradient():
    tensors = given(5)
    tensors[1] = torch.full((B, 5, W), -torch.inf, dtype=torch.float64, requires_grad=True)
    h, after, *grads = gradients(rg_lru, tensors, torch.ones(B, 5, W, dtype=torch.float64))
    assert torch.equal(after, tensors[4])
    assert torch.equal(h[:, 2], tensors[4])
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_no_tokens():
    x, _, _, floor, state = given(0)
    h, after = rg_lru(x, x, x, floor, first=firsts(4)[:, :0], state=state)
    assert h.shape == (B, 0, W)
    assert torch.equal(after, state)
