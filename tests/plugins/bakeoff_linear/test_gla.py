"""Gated linear attention against the recurrence of its paper."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff_linear import GLA
from bakeoff_linear.gla_scan import gla, gla_naive, gla_step
from torch.nn import functional as F

B, H, P, N, D = 2, 3, 5, 4, 24


def given(T, dtype=torch.float64, gates=None):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, T, H, n, generator=g, dtype=dtype) for n in (N, N, P))
    log_a = -torch.rand(B, T, H, N, generator=g, dtype=dtype)
    if gates is not None:
        log_a = torch.tensor(gates, dtype=dtype)[torch.randint(len(gates), log_a.shape, generator=g)]
    return [t.requires_grad_() for t in (q, k, v, log_a)]


def start(dtype=torch.float64):
    return torch.randn(B, H, P, N, generator=torch.Generator().manual_seed(9), dtype=dtype).requires_grad_()


def segments_of(T):
    starts = torch.zeros(B, T, dtype=torch.long)
    starts[0, 0], starts[0, T // 3], starts[1, T // 2], starts[1, T - 1] = 1, 1, 1, 1
    return starts.cumsum(1)


def results(form, values, state=None, **arguments):
    """Outputs, final state and gradients."""
    y, after = form(*values, state=state, **arguments)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
    loss = (y * weight).sum() + (0 if after is None else after.sin().sum())
    inputs = [*values, *([] if state is None else [state])]
    return [y, *([] if after is None else [after]), *torch.autograd.grad(loss, inputs)]


def by_the_paper(q, k, v, log_a):
    """`S_t = diag(a_t) S_(t-1) + k_t v_t^T`, `o_t = q_t S_t`: float64, row vectors."""
    S, rows = q.new_zeros(B, H, N, P), []
    for t in range(q.shape[1]):
        S = log_a[:, t].exp()[..., None] * S + torch.einsum("bhn,bhp->bhnp", k[:, t], v[:, t])
        rows.append(torch.einsum("bhn,bhnp->bhp", q[:, t], S))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("gates", [None, [-1e-3, -1.0, -20.0], [0.0, -1000.0]], ids=["weak", "mixed", "strongest"])
def test_every_chunk_size_equals_the_recurrence(continued, packed, gates):
    for T in (1, 2, 31, 64):
        values, state = given(T, gates=gates), start() if continued else None
        segments = segments_of(T) if packed else None
        expected = results(gla_naive, values, state, segments=segments)
        for chunk in (1, 8, 32):
            for a, b in zip(results(gla, values, state, segments=segments, chunk=chunk), expected, strict=True):
                torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_equals_the_paper():
    values = given(40)
    y, expected = gla(*values, chunk=16)[0], by_the_paper(*values)
    torch.testing.assert_close(y, expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("chunk", [16, 64])
def test_mixed_strong_gates_stay_exact_and_finite_in_float32(T, chunk):
    exact = given(T, gates=[-1e-3, -1.0, -20.0])
    expected = results(gla_naive, exact)
    found = results(gla, [t.detach().float().requires_grad_() for t in exact], chunk=chunk)
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        assert (a - b).abs().max() < 1e-5 * b.abs().max().clamp_min(1e-6)


def test_a_weak_gate_after_strong_ones_keeps_its_digits():
    T = 64
    log_a = torch.full((1, T, 1, 1), -1000.0)
    log_a[0, -1] = -1e-3
    one = torch.ones_like(log_a)
    y, _ = gla(one, one, one, log_a, chunk=64)
    assert y[0, -1].item() == pytest.approx(1.9990005, rel=1e-6)  # 1 + exp(-0.001)


def test_a_long_memory_does_not_stall_in_float32():
    one = torch.ones(1, 4096, 1, 1)
    y, _ = gla(one, one, one, torch.full_like(one, 0.999).log())
    assert y[0, -1, 0, 0].item() == pytest.approx(983.4, rel=5e-4)  # 1 + a + a^2 + ..., a = 0.999


@pytest.mark.parametrize("segments", [None, torch.tensor([[0], [1]])])
def test_one_step_equals_the_recurrence(segments):
    values, state = given(1), start()
    expected = gla_naive(*values, state=state, segments=segments)
    for a, b in zip(gla_step(*values, state=state, segments=segments), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def build(d_model=D, **arguments):
    context = LayerContext(d_model=d_model, vocab_size=50, max_length=128)
    mixer = GLA(context, **{"n_heads": 3, "chunk": 8, "backend": "torch"} | arguments)
    initialise(mixer, seed=0)
    return mixer.double()


def inputs(T):
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_mixer_is_the_layer_of_the_paper():
    mixer, x, T = build(), inputs(30), 30
    q, k = (layer(x).view(B, T, 3, 4) for layer in (mixer.query, mixer.key))
    v, gate = (layer(x).view(B, T, 3, 8) for layer in (mixer.value, mixer.gate))
    decays = torch.sigmoid(x @ mixer.decay_in.weight.T @ mixer.decay_out.weight.T + mixer.decay_out.bias) ** (1 / 16)
    S, rows = q.new_zeros(B, 3, 4, 8), []
    for t in range(T):
        S = decays.view(B, T, 3, 4)[:, t, ..., None] * S + k[:, t, ..., None] * v[:, t, :, None]
        rows.append((q[:, t, :, None] * 4**-0.5 @ S)[..., 0, :])
    read = torch.stack(rows, 1)
    normed = read / (read.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.norm.weight
    expected = mixer.output((normed * F.silu(gate)).flatten(2))
    y = mixer(x, Sequence(torch.zeros(B, T, dtype=torch.long))).y
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)


def test_single_tokens_equal_the_whole():
    mixer = build()
    for T in (1, 2, 31, 64, 100):
        x, past, state, ys = inputs(T), Past(B, 128), mixer.empty_state(B, 128, torch.float64), []
        for t in range(T):
            here = Sequence(torch.zeros(B, 1, dtype=torch.long), past=past)
            y, state, *_ = mixer(x[:, t : t + 1], here, state)
            past = past.advance(here)
            ys.append(y)
        whole = Sequence(torch.zeros(B, T, dtype=torch.long))
        expected, after, *_ = mixer(x, whole, mixer.empty_state(B, 128, torch.float64))
        torch.testing.assert_close(torch.cat(ys, 1), expected, atol=1e-8, rtol=0)
        torch.testing.assert_close(state, after, atol=1e-8, rtol=0)


def test_decay_biases_and_gains_are_vectors():
    found = roles(build())
    assert {name for name, role in found.items() if role == "vector"} == {"decay_out.bias", "norm.weight"}
    assert found["output.weight"] == "output"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_heads": 5}, "expand_keys x d_model is 12 and n_heads 5"),
        ({"n_heads": 3, "expand_values": 1.25, "d_model": 40, "expand_keys": 0.3}, "is 50 and n_heads 3"),
        ({"chunk": 24}, "chunk is 24; it must be a power of two, such as 16"),
        ({"temperature": 0.0}, "temperature 0.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
