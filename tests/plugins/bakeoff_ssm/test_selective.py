"""The selective scan by blocks against the recurrence."""

import pytest
import torch
from bakeoff_ssm import blocked
from bakeoff_ssm.selective import selective_scan, selective_scan_naive, selective_scan_step

B, E, N = 3, 7, 3


def given(T, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, b, c = (torch.randn(B, T, size, generator=g, dtype=dtype) for size in (E, N, N))
    dt = torch.rand(B, T, E, generator=g, dtype=dtype)
    A, D = -3 * torch.rand(E, N, generator=g, dtype=dtype) - 0.1, torch.randn(E, generator=g, dtype=dtype)
    return [t.requires_grad_() for t in (x, dt, A, b, c, D)]


def start(dtype=torch.float64):
    return torch.randn(B, E, N, generator=torch.Generator().manual_seed(9), dtype=dtype).requires_grad_()


def segments_of(T):
    starts = torch.zeros(B, T, dtype=torch.long)
    starts[0, 0], starts[0, T // 3], starts[1, T // 2], starts[1, T - 1] = 1, 1, 1, 1
    return starts.cumsum(1)


def both(values, state, segments):
    """Outputs, final state and gradients by blocks and by the recurrence."""
    results = []
    for form in (selective_scan, selective_scan_naive):
        y, after = form(*values, state=state, segments=segments)
        weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
        loss = (y * weight).sum() + (0 if after is None else after.sin().sum())
        inputs = [*values, *([] if state is None else [state])]
        results.append(([y] if after is None else [y, after], torch.autograd.grad(loss, inputs)))
    return results


# one channel and row at a time; parts of channels; two rows; all rows, two chunks; all at once
@pytest.mark.parametrize("size", [1, 96, 800, 2500, 2**18])
@pytest.mark.parametrize("T", [1, 2, 31, 100])
@pytest.mark.parametrize(("packed", "continued"), [(False, False), (True, True)])
def test_every_size_of_block_equals_the_recurrence(monkeypatch, size, T, packed, continued):
    monkeypatch.setattr(blocked, "IN_CACHE", size)
    values, state = given(T), start() if continued else None
    (fast, fast_grads), (slow, slow_grads) = both(values, state, segments_of(T) if packed else None)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)
    for a, b in zip(fast_grads, slow_grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_blocks_cover_all_tokens_once():
    plan = blocked.Plan(channels=4, rows=1, length=16, chunks=3)
    assert plan.blocks(100) == [(0, 3, 16), (48, 3, 16), (96, 1, 4)]
    assert plan.blocks(64) == [(0, 3, 16), (48, 1, 16)]
    assert plan.blocks(5) == [(0, 1, 5)]


def test_the_recurrence_by_hand():
    one = torch.ones(1, 5, 1, dtype=torch.float64)
    half = torch.full((1, 1), 0.5, dtype=torch.float64).log()  # a = 1/2 where dt = 1
    nothing = torch.zeros(1, dtype=torch.float64)
    for form in (selective_scan, selective_scan_naive):
        y, _ = form(one, one, half, one, one, nothing)
        assert y.flatten().tolist() == pytest.approx([1, 1.5, 1.75, 1.875, 1.9375])
        y, _ = form(one, one, half, one, one, nothing, segments=torch.tensor([[1, 1, 1, 2, 2]]))
        assert y.flatten().tolist() == pytest.approx([1, 1.5, 1.75, 1, 1.5])
        y, after = form(one[:, :2], one[:, :2], half, one[:, :2], one[:, :2], nothing, state=4 * one[:, :1])
        assert y.flatten().tolist() == pytest.approx([3, 2.5])
        assert after.flatten().tolist() == pytest.approx([2.5])


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("size", [800, 2**18])
def test_mixed_strong_gates_stay_exact_and_finite_in_float32(monkeypatch, T, size):
    monkeypatch.setattr(blocked, "IN_CACHE", size)
    values = given(T, torch.float32)
    gates = torch.tensor([1e-3, 1.0, 20.0])
    pick = torch.randint(3, (B, T, E), generator=torch.Generator().manual_seed(5))
    values[1] = gates[pick].requires_grad_()
    values[2] = -torch.tensor([1.0, 5.0, 50.0]).repeat(E, 1)  # logarithms of decays from -1e-3 to -1000
    values[2].requires_grad_()
    state = start(torch.float32)
    (fast, grads), _ = both(values, state, None)
    exact = [t.detach().double().requires_grad_() for t in values]
    _, (slow, slow_grads) = both(exact, state.detach().double().requires_grad_(), None)
    for a, b in zip(fast, slow, strict=True):
        assert (a - b).abs().max() < 1e-5 * b.abs().max()
    for a, b in zip(grads, slow_grads, strict=True):
        assert a.isfinite().all()
        assert (a - b).abs().max() < 1e-4 * b.abs().max()


def test_a_long_memory_does_not_stall_in_float32():
    one = torch.ones(1, 4096, 1)  # 1 + a + a^2 + ..., a = 0.999
    y, _ = selective_scan(one, one, torch.full((1, 1), 0.999).log(), one, one, torch.zeros(1))
    assert y[0, -1, 0].item() == pytest.approx(983.4, rel=5e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_one_step_equals_the_recurrence(packed):
    values, state = given(1), start()
    segments = torch.tensor([[0], [1], [0]]) if packed else None
    fast = selective_scan_step(*values, state=state, segments=segments)
    slow = selective_scan_naive(*values, state=state, segments=segments)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_states_are_kept_between_blocks_only():
    """What is saved for the gradient is far smaller than all states, (B, T, E, N)."""
    T, E, N = 1024, 64, 16
    x = torch.randn(1, T, E, requires_grad=True)
    b = torch.randn(1, T, N, requires_grad=True)
    A = -torch.rand(E, N)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        selective_scan(x, torch.rand(1, T, E), A, b, b, torch.zeros(E))
    assert sum({t.data_ptr(): t.numel() for t in saved}.values()) < T * E * N / 2
