"""The LSTM against torch's, and what it owes to documents, padding, splits and initialisation."""

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.interfaces.state import fork, nbytes, select
from bakeoff.parallel.tensor import refuse_whole
from bakeoff.testing.host import model
from bakeoff_rnn import LSTM, MultiplicativeLSTM
from bakeoff_rnn.lstm import LSTMState
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

D = 6


def build(dtype=torch.float64, seed=0, **arguments):
    mixer = LSTM(LayerContext(d_model=D, vocab_size=5, max_length=64), **arguments)
    initialise(mixer, seed=seed)
    return mixer.to(dtype)


def peer(mixer):
    other = nn.LSTM(D, mixer.width, batch_first=True).to(mixer.input.weight.dtype)
    with torch.no_grad():
        other.weight_ih_l0.copy_(mixer.input.weight)
        other.weight_hh_l0.copy_(mixer.recurrent.weight)
        other.bias_ih_l0.copy_(mixer.input.bias)
        other.bias_hh_l0.copy_(mixer.recurrent.bias)
    return other


def inputs(T, batch=2, dtype=torch.float64, seed=1):
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def run(mixer, x, state=None, **described):
    return mixer(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long), **described), state)


def run_split(mixer, x, lengths, state=None, **described):
    """Outputs of consecutive calls through the state, and the state after them."""
    past = Past(x.shape[0], 256)
    state = mixer.empty_state(x.shape[0], 256, x.dtype) if state is None else state
    ys, start = [], 0
    for length in lengths:
        here = slice(start, start + length)
        parts = {name: value[:, here] for name, value in described.items()}
        sequence = Sequence(torch.zeros(x.shape[0], length, dtype=torch.long), past=past, **parts)
        y, state, *_ = mixer(x[:, here], sequence, state)
        past, start = past.advance(sequence), start + length
        ys.append(y)
    return torch.cat(ys, 1), state


def test_one_step_by_hand():
    mixer = LSTM(LayerContext(d_model=1, vocab_size=5, max_length=4)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.zero_()
        mixer.input.weight[2] = 1.0  # the candidate reads the input; the gates stand at one half
    ys = run(mixer, torch.ones(1, 2, 1, dtype=torch.float64)).y.flatten()
    first = 0.5 * torch.tensor(1.0).tanh()
    second = 0.5 * first + first  # half of the old cell and half of the candidate
    assert ys.tolist() == pytest.approx([0.5 * first.tanh().item(), 0.5 * second.tanh().item()], rel=1e-6)


@pytest.mark.parametrize("T", [1, 2, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torch_outputs_states_and_gradients(T, dtype):
    mixer = build(dtype)
    other, x, weight = peer(mixer), inputs(T, dtype=dtype), inputs(T, dtype=dtype, seed=2)
    start = LSTMState(*(torch.randn(2, D, generator=torch.Generator().manual_seed(s), dtype=dtype) for s in (3, 4)))
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, state, *_ = run(mixer, mine, start)
    expected, (h, c) = other(theirs, (start.h[None], start.c[None]))
    tolerance = {"atol": 1e-6, "rtol": 1e-6}
    for a, b in ((y, expected), (state.h, h[0]), (state.c, c[0])):
        torch.testing.assert_close(a, b, **tolerance)
    ((y * weight).sum() + state.c.sin().sum()).backward()
    ((expected * weight).sum() + c.sin().sum()).backward()
    torch.testing.assert_close(mine.grad, theirs.grad, **tolerance)
    torch.testing.assert_close(mixer.input.weight.grad, other.weight_ih_l0.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixer.recurrent.weight.grad, other.weight_hh_l0.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixer.recurrent.bias.grad, other.bias_hh_l0.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [None, D, 10])
def test_parameters_are_those_of_torch(width):
    mixer = build(width=width)
    h = width or D
    own = 4 * h * (D + h + 2)
    assert own == sum(p.numel() for p in nn.LSTM(D, h).parameters())
    assert sum(p.numel() for p in mixer.parameters()) == own + (h * D if h != D else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_equals_the_naive_loop_and_its_gradients(dtype, continued, padded, packed):
    mixer, x = build(dtype), inputs(23, batch=4, dtype=dtype).requires_grad_()
    g = torch.Generator().manual_seed(7)
    described = {}
    if packed:
        described["documents"] = (torch.rand(4, 23, generator=g) < 0.2).long().cumsum(1)
    if padded:
        described["real"] = torch.arange(23)[None] < torch.tensor([23, 9, 1, 0])[:, None]
    state = mixer.empty_state(4, 23, dtype)
    if continued:
        state = LSTMState(*(torch.randn(4, D, generator=g, dtype=dtype).requires_grad_() for _ in range(2)))
    weight = inputs(23, batch=4, dtype=dtype, seed=5) * described.get("real", torch.ones(4, 23))[..., None]
    leaves = [x, *mixer.parameters(), *(state if continued else ())]
    found = []
    for form in (mixer, mixer.naive):
        result = form(x, Sequence(torch.zeros(4, 23, dtype=torch.long), **described), state)
        loss = (result.y * weight).sum() + result.state.h.sin().sum() + result.state.c.cos().sum()
        found.append((result.y * weight, *result.state, *torch.autograd.grad(loss, leaves)))
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lengths", [[1] * 12, [5, 7], [1, 10, 1], [12]])
def test_any_split_gives_the_same_outputs_and_gradients(lengths):
    mixer, x, weight = build(), inputs(12), inputs(12, seed=2)
    found = []
    for split in ([12], lengths):
        given = x.clone().requires_grad_()
        y, state = run_split(mixer, given, split)
        loss = (y * weight).sum() + state.c.sin().sum()
        found.append((y, *torch.autograd.grad(loss, [given, *mixer.parameters()])))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize("lengths", [[5, 1, 8, 6], [20], [19, 1]])
@pytest.mark.parametrize("split", [[20], [6, 14], [1] * 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_documents_equal_themselves_alone(lengths, split, dtype):
    mixer, x = build(dtype), inputs(20, batch=1, dtype=dtype)
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    together, _ = run_split(mixer, x, split, documents=documents)
    alone = torch.cat([run(mixer, part).y for part in x.split(lengths, 1)], 1)
    torch.testing.assert_close(together, alone, atol=1e-13 if dtype == torch.float64 else 1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_crosses_documents(dtype):
    mixer, x = build(dtype), inputs(20, dtype=dtype).requires_grad_()
    documents = (torch.arange(20) >= 11).long().expand(2, -1)
    y = run(mixer, x, documents=documents).y
    (grad,) = torch.autograd.grad(y[:, 11:].sum(), x)
    assert grad[:, :11].abs().max() <= torch.finfo(torch.float32).tiny
    other = run(mixer, torch.where(torch.arange(20)[:, None] < 11, -x, x), documents=documents).y
    assert torch.equal(other[:, 11:], y[:, 11:])


@pytest.mark.parametrize("pads", [0, 1, 7])
def test_left_padding_changes_nothing(pads):
    mixer, x = build(), inputs(9, batch=1)
    padded = torch.cat([torch.full((1, pads, D), 5.0, dtype=x.dtype), x], 1)
    y, state = run_split(mixer, padded, [pads + 9], real=torch.arange(pads + 9)[None] >= pads)
    expected, after = run_split(mixer, x, [9])
    torch.testing.assert_close(y[:, pads:], expected, atol=1e-13, rtol=0)
    for a, b in zip(state, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-13, rtol=0)


@pytest.mark.parametrize("calls", [[9], [1] * 9])
def test_right_padding_keeps_the_last_real_state(calls):
    mixer, x = build(), inputs(9, batch=3)
    lengths = [9, 2, 0]
    real = torch.arange(9)[None] < torch.tensor(lengths)[:, None]
    _, held = run_split(mixer, inputs(4, batch=3, seed=5), [4])
    _, state = run_split(mixer, x, calls, fork(held), real=real)
    for row, length in enumerate(lengths):
        alone = LSTMState(*(t[row : row + 1] for t in held))
        expected = run_split(mixer, x[row : row + 1, :length], [length], alone)[1] if length else alone
        for a, b in zip(state, expected, strict=True):
            torch.testing.assert_close(a[row : row + 1], b, atol=1e-13, rtol=0)


def test_rows_of_the_state_can_be_chosen_and_forked():
    mixer, x = build(), inputs(6, batch=3)
    with torch.no_grad():
        _, state = run_split(mixer, x[:, :5], [5])
        kept, rows = fork(state), torch.tensor([2, 0, 2])
        y, _ = run_split(mixer, x[rows, 5:], [1], select(state, rows))
        expected, _ = run_split(mixer, x[:, 5:], [1], state)
        again, _ = run_split(mixer, x[:, 5:], [1], kept)
    torch.testing.assert_close(y, expected[rows], atol=1e-13, rtol=0)
    assert torch.equal(again, expected)


def test_state_is_constant_and_stays_float32_under_bf16():
    mixer = build(torch.bfloat16)
    state = mixer.empty_state(2, 1000, torch.bfloat16)
    assert nbytes(state) == 2 * 2 * D * 4
    y, after = run_split(mixer, inputs(20, dtype=torch.bfloat16), [13, 1, 6], state)
    assert y.dtype == torch.bfloat16
    assert all(t.dtype == torch.float32 for t in after)
    with torch.autocast("cpu", torch.bfloat16):
        _, after = run_split(build(torch.float32), inputs(20, dtype=torch.float32), [13, 1, 6])
    assert all(t.dtype == torch.float32 for t in after)


def test_a_cell_remembers_over_4096_steps_under_bf16():
    mixer = LSTM(LayerContext(d_model=1, vocab_size=5, max_length=4096))
    initialise(mixer, seed=0)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.zero_()
        # f = 0.999, i = 1, g = 1: the cell sums 1 + 0.999 + 0.999^2 + ...
        mixer.input.bias.copy_(torch.tensor([30.0, 6.906755, 30.0, 30.0]))
    x, state = torch.zeros(1, 4096, 1), mixer.empty_state(1, 4096)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        state = run(mixer, x, state).state
    assert state.c.item() == pytest.approx(983.4, rel=5e-3)


def test_initial_biases_survive_a_whole_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = LSTM(LayerContext(d_model=64, vocab_size=5, max_length=64), forget_bias=2.0)
            self.readout = nn.Linear(64, 5)

    model = Model()
    initialise(model, seed=3)
    i, f, g, o = model.layer.input.bias.view(4, 64)
    assert (f == 2).all()
    assert not torch.cat([i, g, o]).any()
    assert not model.layer.recurrent.bias.any()
    assert model.layer.recurrent.weight.abs().max() <= 64**-0.5
    found = roles(model.layer)
    assert {name for name, role in found.items() if role == "vector"} == {"input.bias", "recurrent.bias"}


@pytest.mark.parametrize("width", [None, 10])
def test_cost_is_what_the_counter_sees_of_the_naive_form(width):
    mixer, x = build(width=width), inputs(7, batch=1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer.naive(x, Sequence(torch.zeros(1, 7, dtype=torch.long)))
    assert mixer.flops(7, 99) == counter.get_total_flops()
    h = width or D
    assert mixer.flops(1, 1) == 8 * h * (D + h) + (2 * h * D if width else 0)


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="width is 0"):
        build(width=0)


@pytest.mark.parametrize("mixer", [LSTM, MultiplicativeLSTM])
def test_ranks_that_would_share_out_its_channels_are_refused_by_name(mixer):
    with pytest.raises(CapabilityError, match=rf"claim no `tensor_parallel`: {mixer.__name__} \(layers 0, 1\)"):
        refuse_whole(model("mixer", mixer))
