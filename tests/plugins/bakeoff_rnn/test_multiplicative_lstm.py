"""The multiplicative LSTM against its published equations written out, by hand, and in cost and initialisation."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff_rnn import MultiplicativeLSTM
from bakeoff_rnn.multiplicative_lstm import MultiplicativeLSTMState

D = 6


def build(dtype=torch.float64, **arguments):
    mixer = MultiplicativeLSTM(LayerContext(d_model=D, vocab_size=5, max_length=64), **arguments)
    initialise(mixer, seed=0)
    return mixer.to(dtype)


def draw(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def run(form, x, state=None, **described):
    return form(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long), **described), state)


def published(mixer, x, h, c):
    """The cell as Radford et al. (2017) print it, on rows without padding: each gate by its own matrices."""
    W = mixer.width
    by_x, by_m, bias = (
        t.view(4, W, *t.shape[1:]) for t in (mixer.input.matrix(), mixer.by_m.matrix(), mixer.input.bias)
    )
    rows = []
    for t in range(x.shape[1]):
        m = (x[:, t] @ mixer.factor.matrix().t()) * (h @ mixer.by_h.matrix().t())
        o, i, f, u = (x[:, t] @ by_x[k].t() + m @ by_m[k].t() + bias[k] for k in range(4))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        rows.append(h)
    y = torch.stack(rows, 1)
    return y if mixer.output is None else mixer.output(y), h, c


@pytest.mark.parametrize("T", [1, 2, 31, 100])
@pytest.mark.parametrize("arguments", [{}, {"width": 10, "weight_norm": True}])
def test_equals_the_published_recurrence_states_and_gradients(T, arguments):
    mixer = build(**arguments)
    W = mixer.width
    x, h, c = (draw(*shape, seed=s).requires_grad_() for s, shape in enumerate([(3, T, D), (3, W), (3, W)]))
    leaves = [x, h, c, *mixer.parameters()]
    found = []
    for y, h_last, c_last in (_flat(run(mixer, x, MultiplicativeLSTMState(h, c))), published(mixer, x, h, c)):
        loss = (y * draw(3, T, D, seed=9)).sum() + h_last.sin().sum() + c_last.cos().sum()
        found.append((y, h_last, c_last, *torch.autograd.grad(loss, leaves)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


def _flat(result):
    return result.y, *result.state


def test_one_unit_by_hand():
    mixer = MultiplicativeLSTM(LayerContext(d_model=1, vocab_size=5, max_length=4)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.zero_()
        mixer.factor.weight.fill_(2.0)
        mixer.by_h.weight.fill_(3.0)
        mixer.by_m.weight[3] = 1.0  # the candidate reads m alone; the gates stand at one half
    state = MultiplicativeLSTMState(*(torch.full((1, 1), value, dtype=torch.float64) for value in (0.5, 0.25)))
    result = run(mixer, torch.tensor([[[0.1], [0.7]]], dtype=torch.float64), state)
    c1 = 0.5 * 0.25 + 0.5 * torch.tensor(0.2 * 1.5, dtype=torch.float64).tanh()
    h1 = 0.5 * c1.tanh()
    c2 = 0.5 * c1 + 0.5 * (1.4 * 3 * h1).tanh()
    assert result.y.flatten().tolist() == pytest.approx([h1.item(), 0.5 * c2.tanh().item()], rel=1e-12)
    assert result.state.c.item() == pytest.approx(c2.item(), rel=1e-12)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_loop_and_naive_agree_in_all_gradients(padded, packed):
    mixer, x, g = build(width=7), draw(4, 23, D).requires_grad_(), torch.Generator().manual_seed(7)
    described = {}
    if packed:
        described["documents"] = (torch.rand(4, 23, generator=g) < 0.2).long().cumsum(1)
    if padded:
        described["real"] = torch.rand(4, 23, generator=g) < torch.tensor([1.0, 0.7, 0.3, 0.0])[:, None]
    state = MultiplicativeLSTMState(*(draw(4, 7, seed=s).requires_grad_() for s in (3, 4)))
    weight = draw(4, 23, D, seed=5) * described.get("real", torch.ones(4, 23))[..., None]
    leaves = [x, *mixer.parameters(), *state]
    found = []
    for form in (mixer, mixer.naive):
        y, h, c = _flat(run(form, x, state, **described))
        loss = (y * weight).sum() + h.sin().sum() + c.cos().sum()
        found.append((y * weight, h, c, *torch.autograd.grad(loss, leaves)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("T", [1, 9])
def test_hidden_states_can_be_read(T):
    mixer, x = build(width=10), draw(2, T, D)
    seen = []
    mixer.hidden.register_forward_hook(lambda module, given, out: seen.append(out))
    result = run(mixer, x, mixer.empty_state(2, 64, torch.float64))
    assert seen[0].shape == (2, T, 10)
    assert torch.equal(seen[0][:, -1], result.state.h)
    assert torch.equal(mixer.output(seen[0]), result.y)


def test_normed_rows_have_their_gains_as_lengths():
    mixer = build(weight_norm=True)
    with torch.no_grad():
        for matrix in (mixer.factor, mixer.by_h, mixer.input, mixer.by_m):
            assert (matrix.gain == 1).all()
            matrix.gain.copy_(torch.arange(1, len(matrix.gain) + 1))
            torch.testing.assert_close(matrix.matrix().norm(dim=1), matrix.gain)
    assert sum(p.numel() for p in mixer.parameters()) == (5 * D * D + 5 * D * D) + 4 * D + 10 * D
    assert {n for n, role in roles(mixer).items() if role == "vector"} == {
        "input.bias", "factor.gain", "by_h.gain", "input.gain", "by_m.gain",
    }  # fmt: skip


def test_the_published_cell_has_as_many_weights_as_its_files():
    """64 inputs and 4096 units: wx, wh, wmx, wmh, b, and a gain for each of their columns."""
    with torch.device("meta"):
        context = LayerContext(d_model=64, vocab_size=256, max_length=4)
        mixer = MultiplicativeLSTM(context, width=4096, weight_norm=True)
    own = sum(p.numel() for p in mixer.parameters()) - mixer.output.weight.numel()
    assert own == 1_048_576 + 67_108_864 + 262_144 + 16_777_216 + 16_384 + 2 * 16_384 + 2 * 4096


def test_the_forget_bias_survives_a_whole_model():
    model = torch.nn.Sequential(
        MultiplicativeLSTM(LayerContext(d_model=8, vocab_size=5, max_length=4), forget_bias=2.0)
    )
    initialise(model, seed=3)
    assert model[0].input.bias.view(4, 8).tolist() == [[0.0] * 8, [0.0] * 8, [2.0] * 8, [0.0] * 8]


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="width is 0"):
        build(width=0)
