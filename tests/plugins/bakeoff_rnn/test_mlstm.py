"""The mLSTM against transformers' layer and its recurrence without a stabiliser, at extreme gates, and in counts."""

import math

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff_rnn import MLSTM
from bakeoff_rnn.matrix_memory import MatrixMemory, matrix_memory, matrix_memory_step
from transformers import xLSTMConfig
from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

D = 24


def build(dtype=torch.float64, **arguments):
    context = LayerContext(d_model=D, vocab_size=5, max_length=128)
    mixer = MLSTM(context, **{"n_heads": 2, "key_width": 16, "chunk": 8} | arguments)
    initialise(mixer, seed=0)
    return mixer.to(dtype)


def draw(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def sequence(x, **described):
    return Sequence(torch.zeros(x.shape[:2], dtype=torch.long), **described)


def gates(B, T, H, low, high, seed=3):
    """Log forget gates of -1e-3, -1 and -20 mixed; log input gates of `low` and `high` mixed."""
    g = torch.Generator().manual_seed(seed)
    f = torch.tensor([-1e-3, -1.0, -20.0], dtype=torch.float64)[torch.randint(3, (B, T, H), generator=g)]
    i = torch.tensor([low, high], dtype=torch.float64)[torch.randint(2, (B, T, H), generator=g)]
    return i, f


def plain(q, k, v, i, f):
    """Beck et al. (2024), equations 19 to 21, without a stabiliser: token j weighs f_(j+1) ... f_t i_j at t."""
    F = f.cumsum(1).transpose(1, 2)
    logs = F[:, :, :, None] - F[:, :, None, :] + i.transpose(1, 2)[:, :, None]
    weights = logs.exp().tril() * (q.transpose(1, 2) @ k.transpose(1, 2).mT)
    y = weights @ v.transpose(1, 2)
    return (y / weights.sum(-1).abs().clamp_min(1)[..., None]).transpose(1, 2)


def peer(mixer, T):
    config = xLSTMConfig(
        hidden_size=D,
        num_heads=mixer.n_heads,
        qk_dim_factor=mixer.key_width / D,
        v_dim_factor=mixer.width / D,
        chunk_size=math.gcd(T, 8),
        mode="train",
        norm_reduction_force_float32=False,
    )
    other = xLSTMLayer(config).double()
    names = {
        "q": "q",
        "k": "k",
        "v": "v",
        "igate_preact": "input_gate",
        "fgate_preact": "forget_gate",
        "ogate_preact": "output_gate",
        "multihead_norm": "norm",
        "out_proj": "output",
    }
    for theirs, ours in names.items():
        getattr(other, theirs).load_state_dict(getattr(mixer, ours).state_dict())
    return other


@pytest.mark.parametrize("T", [1, 2, 16, 100])
@pytest.mark.parametrize("bias", [0.0, 14.0])
def test_equals_the_layer_of_transformers_states_and_gradients(T, bias):
    """Also where input gates come near to their cap, and the published eps is felt."""
    mixer = build()
    with torch.no_grad():
        for gate in (mixer.input_gate, mixer.forget_gate):
            gate.weight.copy_(draw(2, D, seed=4))
        mixer.input_gate.bias.fill_(bias)
        mixer.norm.weight.add_(draw(D, seed=5) / 3)
    other, x = peer(mixer, T), draw(2, T, D).requires_grad_()
    state = MatrixMemory(draw(2, 2, 13, 8, seed=6), draw(2, 2, seed=8))
    y, after, *_ = mixer(x, sequence(x), state)
    expected, (C, n, m) = other(x, (state.cell.mT, state.normaliser, state.m[..., None]))
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-8)
    for mine, theirs in ((after.cell.mT, C), (after.normaliser, n), (after.m, m[..., 0])):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-8)
    weight = draw(2, T, D, seed=9)
    found = torch.autograd.grad(
        (y * weight).sum(), [x, mixer.input_gate.weight, mixer.forget_gate.weight, mixer.k.weight]
    )
    wanted = torch.autograd.grad(
        (expected * weight).sum(), [x, other.igate_preact.weight, other.fgate_preact.weight, other.k.weight]
    )
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-50.0, 50.0), (-50.0, -50.0)])
def test_extreme_gates_in_float32(T, low, high):
    q, k, v = (draw(2, T, 2, width, seed=s) for s, width in enumerate((8, 8, 6)))
    i, f = gates(2, T, 2, low, high)
    expected = plain(q, k, v, i, f)
    given = [t.float().requires_grad_() for t in (q, k, v, i, f)]
    y, _ = matrix_memory(*given, eps=0.0, chunk=16)
    torch.testing.assert_close(y.double(), expected, atol=1e-4 * float(expected.abs().max()), rtol=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), given))


@pytest.mark.parametrize("forget", [-1000.0, -1e-3])
def test_very_strong_and_very_weak_gates_stay_finite(forget):
    q, k, v = (draw(1, 100, 2, 8, seed=s, dtype=torch.float32) for s in range(3))
    i, f = torch.full((2, 1, 100, 2), -500.0)
    f = torch.full_like(i, forget)
    given = [t.clone().requires_grad_() for t in (q, k, v, i, f)]
    y, state = matrix_memory(*given, chunk=16, state=MatrixMemory(torch.zeros(1, 2, 9, 8), torch.zeros(1, 2)))
    assert all(t.isfinite().all() for t in (y, *state))
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), given))


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
def test_chunks_equal_steps_and_their_final_state(T):
    q, k, v = (draw(2, T, 2, width, seed=s) for s, width in enumerate((8, 8, 6)))
    i, f = gates(2, T, 2, -3.0, 3.0)
    state = first = MatrixMemory(draw(2, 2, 7, 8, seed=6), draw(2, 2, seed=8))
    steps = []
    for t in range(T):
        y, state = matrix_memory_step(*(x[:, t : t + 1] for x in (q, k, v, i, f)), state=state)
        steps.append(y)
    y, after = matrix_memory(q, k, v, i, f, chunk=16, state=first)
    torch.testing.assert_close(y, torch.cat(steps, 1), atol=1e-10, rtol=1e-8)
    for a, b in zip(after, state, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


def test_gradients_reach_the_first_state_and_come_from_the_last():
    q, k, v = (draw(1, 5, 1, 3, seed=s) for s in range(3))
    i, f = draw(1, 5, 1, seed=4), -draw(1, 5, 1, seed=5).exp()
    state = (draw(1, 1, 4, 3, seed=6), draw(1, 1, seed=8))
    given = [t.requires_grad_() for t in (q, k, v, i, f, *state)]

    def flat(q, k, v, i, f, *state):
        y, after = matrix_memory(q, k, v, i, f, chunk=2, eps=1e-2, state=MatrixMemory(*state))
        return y, *after

    assert torch.autograd.gradcheck(flat, given)


def test_left_padding_and_documents_leave_a_fresh_memory():
    mixer = build()
    with torch.no_grad():
        mixer.input_gate.weight.copy_(draw(2, D, seed=4))
        mixer.input_gate.bias.zero_()
    x = draw(1, 20, D)
    documents = (torch.arange(20) >= 9).long()[None]
    y = mixer(x, sequence(x, documents=documents)).y
    alone = x[:, 9:]
    torch.testing.assert_close(y[:, 9:], mixer(alone, sequence(alone)).y, atol=1e-12, rtol=0)
    padded = sequence(x, real=torch.arange(20)[None] >= 9, past=Past(1, 32))
    y, state, *_ = mixer(x, padded, mixer.empty_state(1, 32, torch.float64))
    expected, after, *_ = mixer(alone, sequence(alone), mixer.empty_state(1, 32, torch.float64))
    torch.testing.assert_close(y[:, 9:], expected, atol=1e-12, rtol=0)
    for a, b in zip(state, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_initial_gates_survive_a_whole_model():
    model = torch.nn.Sequential(MLSTM(LayerContext(d_model=8, vocab_size=5, max_length=4), n_heads=4))
    initialise(model, seed=3)
    assert model[0].input_gate.bias.tolist() == [-10.0] * 4
    assert model[0].forget_gate.bias.tolist() == [3.0, 4.0, 5.0, 6.0]
    assert not model[0].input_gate.weight.any()
    assert not model[0].forget_gate.weight.any()
    vectors = {name for name, role in roles(model[0]).items() if role == "vector"}
    assert vectors == {"input_gate.bias", "forget_gate.bias", "norm.weight"}


def test_state_stays_float32_under_bf16():
    mixer, x = build(torch.bfloat16), draw(2, 20, D, dtype=torch.bfloat16)
    y, state, *_ = mixer(x, sequence(x), mixer.empty_state(2, 32, torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert all(t.dtype == torch.float32 for t in state)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n_heads": 5}, "width 24 is no multiple of n_heads 5"),
        ({"n_heads": 3, "key_width": 16}, "key_width 16 is no multiple of n_heads 3"),
        ({"n_heads": 0}, "n_heads is 0"),
        ({"chunk": 0}, "chunk is 0"),
        ({"gate_soft_cap": 0.0}, "gate_soft_cap is 0"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        build(**arguments)
