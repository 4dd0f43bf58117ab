"""Retention against the parallel form and the recurrence of its paper."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff_linear import Retention
from torch.nn import functional as F

D = 24


def build(**arguments):
    context = LayerContext(d_model=D, vocab_size=50, max_length=128)
    mixer = Retention(context, **{"n_heads": 3, "chunk": 8, "backend": "torch"} | arguments)
    initialise(mixer, seed=0)
    return mixer.double()


def inputs(T):
    return torch.randn(2, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def sequence(mixer, B, T, **described):
    return Sequence(torch.zeros(B, T, dtype=torch.long), **described).prepare(mixer.position.needs())


def rotated(x):
    """(B, T, H, N), each pair of channels (i, i + N / 2) turned by its position times 10000^(-2 i / N)."""
    T, N = x.shape[1], x.shape[-1]
    speeds = 10000.0 ** (-torch.arange(0, N, 2, dtype=torch.float64) / N)
    angles = torch.arange(T, dtype=torch.float64)[:, None, None] * speeds
    first, second = x.chunk(2, -1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def of_the_paper(mixer, x, retain):
    """`(swish(X W_G) * norm(retention)) W_O`, the norm over each head's channels."""
    B, T = x.shape[:2]
    q, k, v = (layer(x).view(B, T, 3, -1) for layer in (mixer.query, mixer.key, mixer.value))
    rates = 1 - 2.0 ** (-5 - torch.arange(3, dtype=torch.float64))
    y = retain(rotated(q), rotated(k) * 8**-0.5, v, rates)
    normed = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return mixer.output(F.silu(mixer.gate(x)) * normed.flatten(2))


def parallel(q, k, v, rates):
    T = q.shape[1]
    distance = torch.arange(T)[:, None] - torch.arange(T)
    decay = torch.where(distance >= 0, rates[:, None, None] ** distance, 0)
    return torch.einsum("bthn,bshn,hts,bshp->bthp", q, k, decay, v)


def recurrent(q, k, v, rates):
    held, rows = 0, []
    for t in range(q.shape[1]):
        held = rates[:, None, None] * held + k[:, t, :, :, None] * v[:, t, :, None, :]
        rows.append((q[:, t, :, None] @ held)[..., 0, :])
    return torch.stack(rows, 1)


@pytest.mark.parametrize("form", [parallel, recurrent])
def test_equals_the_paper_outputs_and_gradients(form):
    mixer, x = build(), inputs(30)
    results = []
    for call in (lambda x: mixer(x, sequence(mixer, 2, 30)).y, lambda x: of_the_paper(mixer, x, form)):
        given = x.clone().requires_grad_()
        y = call(given)
        results.append((y, torch.autograd.grad(y.sin().sum(), [given, *mixer.parameters()])))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-6, rtol=0)  # the table of angles is float32
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_heads_forget_at_the_published_rates():
    like = torch.zeros((), dtype=torch.float64)
    assert build().log_decays(like).exp().tolist() == pytest.approx([31 / 32, 63 / 64, 127 / 128], rel=1e-14)


def test_single_tokens_equal_the_whole():
    mixer = build()
    for T in (1, 2, 31, 64, 100):
        x, past, state, ys = inputs(T), Past(2, 128), mixer.empty_state(2, 128, torch.float64), []
        for t in range(T):
            here = sequence(mixer, 2, 1, past=past)
            y, state, *_ = mixer(x[:, t : t + 1], here, state)
            past = past.advance(here)
            ys.append(y)
        whole, after, *_ = mixer(x, sequence(mixer, 2, T), mixer.empty_state(2, 128, torch.float64))
        torch.testing.assert_close(torch.cat(ys, 1), whole, atol=1e-8, rtol=0)
        torch.testing.assert_close(state, after, atol=1e-8, rtol=0)


def test_padding_does_not_decay_the_state():
    mixer, x = build(), inputs(9)
    real = torch.arange(9)[None] < torch.tensor([9, 4])[:, None]
    described = sequence(mixer, 2, 9, real=real)
    _, state, *_ = mixer(x, described, mixer.empty_state(2, 128, torch.float64))
    _, alone, *_ = mixer(x[1:, :4], sequence(mixer, 1, 4), mixer.empty_state(1, 128, torch.float64))
    torch.testing.assert_close(state[1:], alone, atol=1e-12, rtol=0)


def test_parameters_of_a_layer_are_those_of_the_paper():
    mixer = Retention(LayerContext(d_model=2048, vocab_size=1, max_length=1), n_heads=8)
    assert sum(p.numel() for p in mixer.parameters()) == 8 * 2048**2
    assert mixer.empty_state(1, 1).shape == (1, 8, 512, 256)
    assert "vector" not in roles(mixer).values()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_heads": 5}, "d_model is 24 and n_heads 5"),
        ({"expand": 1.25, "n_heads": 4}, "expand x d_model is 30 and n_heads 4"),
        ({"chunk": 0}, "chunk is 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
