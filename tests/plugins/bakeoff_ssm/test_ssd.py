"""The chunked form of state-space duality against the recurrence."""

import pytest
import torch
from bakeoff_ssm.ssd import ssd, ssd_naive, ssd_step

B, H, P, G, N = 2, 4, 3, 2, 5


def given(T, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, b, c = (torch.randn(B, T, *s, generator=g, dtype=dtype) for s in ((H, P), (G, N), (G, N)))
    dt = torch.rand(B, T, H, generator=g, dtype=dtype)
    A, D = -torch.rand(H, generator=g, dtype=dtype) - 0.1, torch.randn(H, generator=g, dtype=dtype)
    return [t.requires_grad_() for t in (x, dt, A, b, c, D)]


def start(dtype=torch.float64):
    return torch.randn(B, H, P, N, generator=torch.Generator().manual_seed(9), dtype=dtype).requires_grad_()


def both(values, state, segments, chunk):
    """Outputs, final state and gradients of the chunked form and of the recurrence."""
    results = []
    for form in (lambda *a, **k: ssd(*a, chunk=chunk, **k), ssd_naive):
        y, after = form(*values, state=state, segments=segments)
        weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
        loss = (y * weight).sum() + (0 if after is None else after.sin().sum())
        inputs = [*values, *([] if state is None else [state])]
        results.append(([y] if after is None else [y, after], torch.autograd.grad(loss, inputs)))
    return results


def segments_of(T):
    starts = torch.zeros(B, T, dtype=torch.long)
    starts[0, 0], starts[0, T // 3], starts[1, T // 2], starts[1, T - 1] = 1, 1, 1, 1
    return starts.cumsum(1)


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("continued", [False, True])
def test_every_chunk_size_equals_the_recurrence(T, packed, continued):
    values, state = given(T), start() if continued else None
    segments = segments_of(T) if packed else None
    for chunk in (1, 8, 16, T):
        (fast, fast_grads), (slow, slow_grads) = both(values, state, segments, chunk)
        for a, b in zip(fast, slow, strict=True):
            torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)
        for a, b in zip(fast_grads, slow_grads, strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_the_scalar_recurrence_by_hand():
    one = torch.ones(1, 1, dtype=torch.float64)
    half = torch.log(torch.tensor([0.5], dtype=torch.float64))  # a = 1/2 where dt = 1
    x, b = one.expand(5, 1)[None, :, :, None], one.expand(5, 1)[None, :, :, None]
    dt, D = torch.ones(1, 5, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for chunk in (1, 2, 3, 5):
        y, _ = ssd(x, dt, half, b, b, D, chunk=chunk)
        assert y.flatten().tolist() == pytest.approx([1, 1.5, 1.75, 1.875, 1.9375])
        y, _ = ssd(x, dt, half, b, b, D, chunk=chunk, segments=torch.tensor([[1, 1, 1, 2, 2]]))
        assert y.flatten().tolist() == pytest.approx([1, 1.5, 1.75, 1, 1.5])


def test_without_decay_it_is_attention_without_softmax():
    x, dt, _, b, c, _ = given(20)
    none, D = torch.zeros(H, dtype=torch.float64), torch.zeros(H, dtype=torch.float64)
    y, _ = ssd(x, torch.ones_like(dt), none, b, c, D, chunk=8)
    q, k = (t.repeat_interleave(H // G, 2).transpose(1, 2) for t in (c, b))
    expected = ((q @ k.transpose(2, 3)).tril() @ x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(y, expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("chunk", [16, 64])
def test_mixed_strong_gates_stay_exact_and_finite_in_float32(T, chunk):
    values = given(T, torch.float32)
    gates = torch.tensor([1e-3, 1.0, 20.0])
    pick = torch.randint(3, (B, T, H), generator=torch.Generator().manual_seed(5))
    x, _, _, b, c, D = values
    dt = gates[pick].requires_grad_()
    values = [x, dt, (-torch.ones(H)).requires_grad_(), b, c, D]
    (fast, grads), _ = both(values, None, None, chunk)
    exact = [t.detach().double().requires_grad_() for t in values]
    _, (slow, slow_grads) = both(exact, None, None, chunk)
    scale = slow[0].abs().max()
    assert ((fast[0] - slow[0]).abs().max() / scale) < 1e-5
    for a, b in zip(grads, slow_grads, strict=True):
        assert a.isfinite().all()
        assert (a - b).abs().max() < 1e-4 * b.abs().max().clamp_min(1e-6)


def test_a_long_memory_does_not_stall_in_float32():
    T = 4096  # 1 + a + a^2 + ..., a = 0.999
    one = torch.ones(1, T, 1, 1)
    log_a = torch.log(torch.tensor([0.999]))
    y, _ = ssd(one, torch.ones(1, T, 1), log_a, one, one, torch.zeros(1))
    assert y[0, -1, 0, 0].item() == pytest.approx(983.4, rel=5e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_one_step_equals_the_recurrence(packed):
    values, state = given(1), start()
    segments = torch.tensor([[0], [1]]) if packed else None
    for a, b in zip(
        ssd_step(*values, state, segments), ssd_naive(*values, state=state, segments=segments), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
