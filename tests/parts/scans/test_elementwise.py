"""The elementwise scan against the loop over tokens, with states, documents, and decays of any strength."""

from pathlib import Path

import pytest
import torch
from bakeoff.interfaces.spans import ORDERS
from bakeoff.parts.scans.elementwise import composed, linear_scan, linear_scan_naive, linear_scan_step
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_spans.py")
LENGTHS = [1, 2, 3, 15, 16, 17, 31, 32, 64, 100, 530]
B, C = 2, 5


def given(T, low=-3.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(T)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)  # noqa: E731
    log_a = torch.rand(B, T, C, generator=generator, dtype=dtype) * low
    return [t.requires_grad_() for t in (log_a, draw(B, T, C), draw(B, C))]


def documents(T):
    """Rows whose documents start at 0 and within, and that continue the state's."""
    starts = torch.zeros(B, T, dtype=torch.long)
    starts[0, ::7] = 1
    starts[1, T // 2] = 1
    return starts.cumsum(1)


def gradients(scan, tensors, probe, **named):
    h, after = scan(*tensors[:2], state=tensors[2], **named)
    return h, after, torch.autograd.grad((h * probe).sum() + after.sum() * 3, tensors)


@pytest.mark.parametrize("described", ["one document", "documents"])
@pytest.mark.parametrize("T", LENGTHS)
def test_equals_the_loop_with_all_gradients(T, described):
    tensors, named = given(T), {} if described == "one document" else {"segments": documents(T)}
    probe = torch.randn(B, T, C, dtype=torch.float64)
    found, expected = (gradients(scan, tensors, probe, **named) for scan in (linear_scan, linear_scan_naive))
    for a, b in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_nothing_before_gives_no_state():
    log_a, b, _ = given(20)
    h, after = linear_scan(log_a, b)
    assert after is None
    torch.testing.assert_close(h, linear_scan(log_a, b, state=torch.zeros(B, C, dtype=b.dtype))[0])


def test_by_hand():
    halves = torch.full((1, 4, 1), 0.5).log()
    h, after = linear_scan(halves, torch.ones(1, 4, 1), state=torch.full((1, 1), 8.0))
    torch.testing.assert_close(h.flatten(), torch.tensor([5.0, 3.5, 2.75, 2.375]))
    torch.testing.assert_close(after.flatten(), torch.tensor([2.375]))
    segments = torch.tensor([[0, 1, 1, 2]])
    h, _ = linear_scan(halves, torch.ones(1, 4, 1), state=torch.full((1, 1), 8.0), segments=segments)
    torch.testing.assert_close(h.flatten(), torch.tensor([5.0, 1.0, 1.5, 1.0]))


@pytest.mark.parametrize("segments", [None, torch.tensor([[0], [1]])])
def test_one_step(segments):
    log_a, b, state = given(1)
    for found, expected in zip(
        linear_scan_step(log_a, b, state, segments),
        linear_scan_naive(log_a, b, state=state, segments=segments),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
def test_decays_of_all_strengths_in_float32(T):
    log_a, b, state = given(T, dtype=torch.float32)
    strengths = torch.tensor([-1e-8, -1e-3, -1.0, -20.0, -1e3])
    at = torch.randint(5, (B, T, C), generator=torch.Generator().manual_seed(0))
    log_a = strengths[at].requires_grad_()
    probe = torch.randn(B, T, C)
    h, after, found = gradients(linear_scan, (log_a, b, state), probe)
    wide = [t.detach().double().requires_grad_() for t in (log_a, b, state)]
    exact = gradients(linear_scan_naive, wide, probe)
    for a, e in zip((h, after, *found), (*exact[:2], *exact[2]), strict=True):
        assert torch.isfinite(a).all()
        assert (a - e).norm() <= 1e-4 * e.norm()


def test_an_infinite_decay_forgets_and_has_a_finite_gradient():
    log_a, b, state = given(10)
    with torch.no_grad():
        log_a[:, 4] = -torch.inf
    h, _, grads = gradients(linear_scan, (log_a, b, state), torch.ones(B, 10, C))
    torch.testing.assert_close(h[:, 4], b[:, 4])
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_inputs_are_left_as_they_are():
    tensors = given(33)
    copies = [t.detach().clone() for t in tensors]
    gradients(linear_scan, tensors, torch.ones(B, 33, C))
    assert all(torch.equal(t, c) for t, c in zip(tensors, copies, strict=True))


def test_no_tokens():
    h, after = linear_scan(*(torch.zeros(B, 0, C) for _ in range(2)), state=torch.ones(B, C))
    assert h.shape == (B, 0, C)
    assert torch.equal(after, torch.ones(B, C))


@pytest.mark.parametrize("T", [1, 2, 3, 16, 21])
@pytest.mark.parametrize("reverse", [False, True])
def test_what_many_tokens_do_to_a_state_is_what_they_do_one_by_one(T, reverse):
    a, b, state = (t.detach() for t in given(T))
    h = state
    for t in reversed(range(T)) if reverse else range(T):
        h = a[:, t] * h + b[:, t]
    change, left = composed(a, b, reverse=reverse)
    torch.testing.assert_close(change * state + left, h)


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_that_share_out_tokens_equal_the_loop(order):
    shared_ranks(2).run(CASES, "elementwise_equals_whole", order=order)


@pytest.mark.parametrize(("order", "reverse"), [("contiguous", True), ("zigzag", False), ("zigzag", True)])
def test_what_spans_tell_is_followed_in_order(order, reverse):
    shared_ranks(2).run(CASES, "letters_arrive_in_order", order=order, reverse=reverse)
