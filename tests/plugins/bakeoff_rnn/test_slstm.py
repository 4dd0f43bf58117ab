"""The sLSTM against its published equations without a stabiliser, at extreme gates, and in cost and initialisation."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff_rnn import SLSTM
from bakeoff_rnn.scalar_memory import NOTHING, ScalarMemory, scalar_memory
from torch.nn import functional as F

D = 12


def build(dtype=torch.float64, **arguments):
    mixer = SLSTM(LayerContext(d_model=D, vocab_size=5, max_length=128), **{"n_heads": 3} | arguments)
    initialise(mixer, seed=0)
    mixer = mixer.to(dtype)
    with torch.no_grad():
        mixer.recurrent.copy_(draw(*mixer.recurrent.shape, seed=11))
        mixer.norm.weight.add_(draw(mixer.width, seed=12) / 3)
    return mixer


def draw(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def run(form, x, state=None, **described):
    return form(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long), **described), state)


def published(gates, by_h, h, c, n):
    """Beck et al. (2024), equations 8 to 14, with a sigmoid to forget and exponentials as they stand."""
    rows = []
    for t in range(gates.shape[1]):
        o, z, i, f = (gates[:, t] + torch.einsum("hgn,bhn->bhg", by_h, h)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
        n = torch.sigmoid(f) * n + torch.exp(i)
        h = torch.sigmoid(o) * c / n
        rows.append(h)
    return torch.stack(rows, 1), c, n


@pytest.mark.parametrize("T", [1, 2, 31, 100])
@pytest.mark.parametrize("arguments", [{}, {"n_heads": 2, "width": 10}])
def test_equals_the_published_recurrence_and_its_gradients(T, arguments):
    mixer, x = build(**arguments), draw(2, T, D).requires_grad_()
    H, N = mixer.n_heads, mixer.width // mixer.n_heads
    h, c, n = (draw(2, H, N, seed=s).abs().requires_grad_() for s in (3, 4, 5))
    leaves = [x, h, c, n, *mixer.parameters()]
    y, state, *_ = run(mixer, x, ScalarMemory(h, c, n, torch.zeros(2, H, N, dtype=torch.float64)))
    gates = F.linear(x, mixer.input.weight, mixer.input.bias).unflatten(2, (H, -1))
    rows, c_last, n_last = published(gates, mixer.recurrent, h, c, n)
    expected = F.layer_norm(rows, (N,), eps=1e-6).flatten(2) * mixer.norm.weight
    expected = expected if mixer.output is None else mixer.output(expected)
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(state.h, rows[:, -1], atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(state.c * state.m.exp(), c_last, atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(state.n * state.m.exp(), n_last, atol=1e-10, rtol=1e-9)
    weight = draw(2, T, D, seed=9)
    ends = [(c / n).sin().sum() for c, n in ((state.c, state.n), (c_last, n_last))]
    found = torch.autograd.grad((y * weight).sum() + ends[0], leaves)
    wanted = torch.autograd.grad((expected * weight).sum() + ends[1], leaves)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_loop_and_naive_agree_in_all_gradients(padded, packed):
    mixer, x, g = build(), draw(4, 23, D).requires_grad_(), torch.Generator().manual_seed(7)
    described = {}
    if packed:
        described["documents"] = (torch.rand(4, 23, generator=g) < 0.2).long().cumsum(1)
    if padded:
        described["real"] = torch.rand(4, 23, generator=g) < torch.tensor([1.0, 0.7, 0.3, 0.0])[:, None]
    state = ScalarMemory(*(draw(4, 3, 4, seed=s).abs().requires_grad_() for s in (3, 4, 5)), draw(4, 3, 4, seed=6))
    weight = draw(4, 23, D, seed=5) * described.get("real", torch.ones(4, 23))[..., None]
    leaves = [x, *mixer.parameters(), *state[:3]]
    found = []
    for form in (mixer, mixer.naive):
        y, (h, c, n, m), *_ = run(form, x, state, **described)
        loss = (y * weight).sum() + h.sin().sum() + c.cos().sum() + n.sin().sum()
        found.append((y * weight, h, c, n, m, *torch.autograd.grad(loss, leaves)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("write", [50.0, -50.0, 500.0, -500.0])
@pytest.mark.parametrize("forget", [20.0, -20.0, -1000.0])
def test_extreme_gates_in_float32(write, forget):
    """A mean of the values: of all of them where nothing is forgotten, of the last where all is, whatever i is."""
    o, z = (draw(2, 40, 3, 4, seed=s, dtype=torch.float32) for s in (1, 2))
    gates = torch.cat([o, z, torch.full_like(o, write), torch.full_like(o, forget)], -1).requires_grad_()
    by_h = torch.zeros(3, 16, 4, requires_grad=True)
    h, c, n = torch.zeros(3, 2, 3, 4)
    y, state = scalar_memory(gates, by_h, ScalarMemory(h, c, n, torch.full_like(h, NOTHING)), None, None)
    values = z.double().tanh()
    if forget > 0:
        values = values.cumsum(1) / torch.arange(1, 41)[:, None, None]
    torch.testing.assert_close(y.double(), o.double().sigmoid() * values, atol=2e-6, rtol=1e-5)
    assert all(t.isfinite().all() for t in (*state, *torch.autograd.grad(y.sum(), [gates, by_h])))


def test_initial_values_survive_a_whole_model():
    context = LayerContext(d_model=8, vocab_size=5, max_length=4, depth=3)
    model = torch.nn.Sequential(*(SLSTM(context.child(layer=i), n_heads=2) for i in range(3)))
    initialise(model, seed=3)
    for layer, power in zip(model, (0.3, 0.95, 1.6), strict=True):
        o, z, i, f = layer.input.bias.view(2, 4, 4).unbind(1)
        assert not torch.stack([o, z, i]).any()
        assert f[0].tolist() == pytest.approx([5 - 12 * (j / 3) ** power for j in range(4)], abs=1e-5)
        assert torch.equal(f[0], f[1])
        assert not layer.recurrent.any()
    found = roles(model[0])
    assert {name for name, role in found.items() if role == "vector"} == {"input.bias", "norm.weight"}
    assert found["recurrent"] == "hidden"


def test_state_stays_float32_under_bf16():
    mixer, x = build(torch.bfloat16), draw(2, 9, D, dtype=torch.bfloat16)
    y, state, *_ = run(mixer, x, mixer.empty_state(2, 32, torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert all(t.dtype == torch.float32 for t in state)


@pytest.mark.parametrize("n_heads", [5, 0])
def test_heads_that_do_not_divide_are_refused(n_heads):
    with pytest.raises(ValueError, match=f"width 12 is no multiple of n_heads {n_heads}"):
        build(n_heads=n_heads)
