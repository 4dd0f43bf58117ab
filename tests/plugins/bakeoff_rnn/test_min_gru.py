"""The minimal GRU against its published recurrence written out, at extreme gates, and in its counts."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff_rnn import MinGRU

D = 6


def build(dtype=torch.float64, **arguments):
    mixer = MinGRU(LayerContext(d_model=D, vocab_size=5, max_length=64), **arguments)
    initialise(mixer, seed=0)
    return mixer.to(dtype)


def draw(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def run(mixer, x, state=None, **described):
    return mixer(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long), **described), state)


def published(mixer, x, h):
    """Feng et al. (2024), section 3.1, with the candidate of appendix B: h_t = (1 - z_t) h_(t-1) + z_t g(...)."""
    z = torch.sigmoid(x @ mixer.gate.weight.t() + mixer.gate.bias)
    u = x @ mixer.candidate.weight.t() + mixer.candidate.bias
    candidate = torch.where(u >= 0, u + 0.5, torch.sigmoid(u))
    rows = []
    for t in range(x.shape[1]):
        h = (1 - z[:, t]) * h + z[:, t] * candidate[:, t]
        rows.append(h)
    return torch.stack(rows, 1) @ mixer.output.weight.t(), h


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
def test_equals_the_published_recurrence_state_and_gradients(T):
    mixer = build(width=10)
    x, h = draw(3, T, D).requires_grad_(), draw(3, 10, seed=2).requires_grad_()
    leaves = [x, h, *mixer.parameters()]
    found = []
    for y, last in (run(mixer, x, h)[:2], published(mixer, x, h)):
        loss = (y * draw(3, T, D, seed=9)).sum() + last.sin().sum()
        found.append((y, last, *torch.autograd.grad(loss, leaves)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("size", [50.0, -50.0, 20.0])
def test_extreme_gates_in_float32(T, size):
    """Gate inputs of +-50, and of -20 to 20 mixed: log(1 - z) from -50 to 0."""
    mixer, exact = build(torch.float32), build()
    shift = size if size == 20.0 else 0.0
    for each in (mixer, exact):
        with torch.no_grad():
            each.gate.weight.mul_(shift)
            each.gate.bias.fill_(0.0 if shift else size)
    x = draw(2, T, D, dtype=torch.float32).requires_grad_()
    y = run(mixer, x).y
    expected, _ = published(exact, x.double(), torch.zeros(2, D, dtype=torch.float64))
    torch.testing.assert_close(y.double(), expected, atol=1e-4 * float(expected.detach().abs().max()), rtol=0)
    grads = torch.autograd.grad(y.sum(), [x, *mixer.parameters()])
    assert all(g.isfinite().all() for g in grads)


def test_parameters_and_roles():
    mixer = build(width=10)
    assert sum(p.numel() for p in mixer.parameters()) == 2 * (D * 10 + 10) + 10 * D
    assert {name for name, role in roles(mixer).items() if role == "vector"} == {"gate.bias", "candidate.bias"}


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="width is 0"):
        build(width=0)
