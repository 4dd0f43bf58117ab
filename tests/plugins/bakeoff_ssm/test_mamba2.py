"""Mamba-2 against transformers' mixer, and what it owes to documents, padding, splits and initialisation."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.interfaces.state import fork, nbytes, select
from bakeoff.testing import check
from bakeoff_ssm import Mamba2
from bakeoff_ssm.mamba2 import Mamba2State
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers import Mamba2Config
from transformers.cache_utils import DynamicCache
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

D = 24


def context(d_model=D, **known):
    return LayerContext(d_model=d_model, vocab_size=50, max_length=128, **known)


def build(seed=0, dtype=torch.float64, d_model=D, **arguments):
    arguments = {"state_size": 16, "head_width": 12, "chunk": 8} | arguments
    mixer = Mamba2(context(d_model), **arguments)
    initialise(mixer, seed=seed)
    return mixer.to(dtype)


def peer(mixer, d_model=D):
    config = Mamba2Config(
        hidden_size=d_model,
        num_heads=mixer.n_heads,
        head_dim=mixer.head_width,
        state_size=mixer.state_size,
        n_groups=mixer.n_groups,
        conv_kernel=4,
        expand=mixer.inner // d_model,
        chunk_size=8,
        num_hidden_layers=1,
        layer_norm_epsilon=1e-5,
    )
    torch.manual_seed(0)
    other = Mamba2Mixer(config, 0)
    convolutions = (mixer.convolve_x, mixer.convolve_B, mixer.convolve_C)
    with torch.no_grad():
        products = (mixer.z, mixer.x, mixer.B, mixer.C, mixer.dt)
        other.in_proj.weight.copy_(torch.cat([p.weight for p in products]))
        other.conv1d.weight.copy_(torch.cat([c.weight for c in convolutions])[:, None])
        other.conv1d.bias.copy_(torch.cat([c.bias for c in convolutions]))
        for name in ("A_log", "dt_bias", "D"):
            getattr(other, name).copy_(getattr(mixer, name))
        other.norm.weight.copy_(mixer.norm.weight)
        other.out_proj.weight.copy_(mixer.output.weight)
    return other, config


def run(mixer, x, state=None, past=None, **described):
    return mixer(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long), past=past, **described), state)


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


def inputs(T, batch=2, dtype=torch.float64, d_model=D, seed=1):
    return torch.randn(batch, T, d_model, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize(("head_width", "n_groups"), [(12, 1), (12, 2), (24, 2), (6, 4)])
@pytest.mark.parametrize("T", [1, 7, 8, 9, 30])
def test_equals_transformers_outputs_and_gradients(T, head_width, n_groups):
    mixer = build(dtype=torch.float32, head_width=head_width, n_groups=n_groups)
    other, _ = peer(mixer)
    x = inputs(T, dtype=torch.float32)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = run(mixer, mine).y, other(theirs)
    torch.testing.assert_close(y, expected, atol=2e-6, rtol=2e-5)
    weight = inputs(T, dtype=torch.float32, seed=2)
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, atol=2e-5, rtol=1e-4)
    for name in ("A_log", "dt_bias", "D"):
        torch.testing.assert_close(getattr(mixer, name).grad, getattr(other, name).grad, atol=1e-4, rtol=1e-4)
    convolutions = torch.cat([c.weight.grad for c in (mixer.convolve_x, mixer.convolve_B, mixer.convolve_C)])
    torch.testing.assert_close(convolutions, other.conv1d.weight.grad[:, 0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mixer.output.weight.grad, other.out_proj.weight.grad, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_equals_transformers_token_by_token():
    mixer = build(dtype=torch.float32)
    other, config = peer(mixer)
    x = inputs(12, dtype=torch.float32)
    cache, state = DynamicCache(config=config), mixer.empty_state(2, 12)
    for first, last in [(0, 5), *((t, t + 1) for t in range(5, 12))]:
        expected = other(x[:, first:last], cache=cache)
        y, state, *_ = run(mixer, x[:, first:last], state)
        torch.testing.assert_close(y, expected, atol=2e-6, rtol=2e-5)


def test_parameters_of_the_published_130m_mixer():
    mixer = Mamba2(LayerContext(d_model=768, vocab_size=1, max_length=1))
    # in 768 x 3352, convolution 1792 x (4 + 1), A_log, dt_bias and D of 24 heads, norm 1536, out 1536 x 768
    assert sum(p.numel() for p in mixer.parameters()) == 768 * 3352 + 1792 * 5 + 3 * 24 + 1536 + 1536 * 768
    norms, embedding = 24 * 768 + 768, 50288 * 768
    assert 24 * sum(p.numel() for p in mixer.parameters()) + norms + embedding == 128_989_632


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
@pytest.mark.parametrize("gradients", [False, True])
def test_single_tokens_equal_the_whole(T, gradients):
    mixer, x = build(chunk=16), inputs(T)
    with torch.set_grad_enabled(gradients):
        y, state = run_split(mixer, x, [1] * T)
        whole, after = run_split(mixer, x, [T])
    torch.testing.assert_close(y, whole, atol=1e-8, rtol=0)
    torch.testing.assert_close(run(mixer, x).y, whole, atol=1e-8, rtol=0)
    for a, b in zip(state, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=0)


@pytest.mark.parametrize("lengths", [[7, 23], [1, 16, 13], [3, 3, 24], [15, 1, 1, 13]])
def test_any_split_gives_the_same_gradients(lengths):
    mixer, x, weight = build(chunk=8), inputs(30), inputs(30, seed=2)
    grads = []
    for split in ([30], lengths):
        given = x.clone().requires_grad_()
        y, state = run_split(mixer, given, split)
        loss = (y * weight).sum() + sum(t.sin().sum() for t in state)
        grads.append(torch.autograd.grad(loss, [given, *mixer.parameters()]))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("lengths", [[5, 1, 17, 7], [30], [29, 1]])
@pytest.mark.parametrize("split", [[30], [6, 24], [1] * 30])
def test_packed_documents_equal_themselves_alone(lengths, split):
    mixer, x = build(chunk=8), inputs(30, batch=1)
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    together, _ = run_split(mixer, x, split, documents=documents)
    alone = torch.cat([run(mixer, part).y for part in x.split(lengths, 1)], 1)
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


def test_no_gradient_crosses_documents():
    mixer, x = build(chunk=8), inputs(20).requires_grad_()
    documents = (torch.arange(20) >= 11).long().expand(2, -1)
    y = run(mixer, x, documents=documents).y
    (grad,) = torch.autograd.grad(y[:, 11:].sum(), x)
    assert grad[:, :11].abs().max() == 0


@pytest.mark.parametrize("pads", [0, 1, 7])
def test_left_padding_changes_nothing(pads):
    mixer, x = build(), inputs(9, batch=1)
    padded = torch.cat([torch.full((1, pads, D), 5.0, dtype=x.dtype), x], 1)
    real = torch.arange(pads + 9)[None] >= pads
    y, state = run_split(mixer, padded, [pads + 9], real=real)
    expected, after = run_split(mixer, x, [9])
    torch.testing.assert_close(y[:, pads:], expected, atol=1e-12, rtol=0)
    for a, b in zip(state, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_right_padding_keeps_the_last_real_entries():
    mixer, x, more = build(), inputs(9, batch=3), inputs(2, batch=3, seed=4)
    lengths = [9, 2, 0]
    real = torch.arange(9)[None] < torch.tensor(lengths)[:, None]
    _, held = run_split(mixer, inputs(4, batch=3, seed=5), [4])
    _, state = run_split(mixer, x, [9], fork(held), real=real)
    y, _ = run_split(mixer, more, [1, 1], state)
    for row, length in enumerate(lengths):
        alone = Mamba2State(*(t[row : row + 1] for t in held))
        both = torch.cat([x[row : row + 1, :length], more[row : row + 1]], 1)
        expected, _ = run_split(mixer, both, [length + 2], alone)
        torch.testing.assert_close(y[row : row + 1], expected[:, length:], atol=1e-12, rtol=0)


def test_rows_of_the_state_can_be_chosen_and_forked():
    mixer, x = build(), inputs(6, batch=3)
    with torch.no_grad():
        _, state = run_split(mixer, x[:, :5], [5])
        kept, rows = fork(state), torch.tensor([2, 0, 2])
        y, _ = run_split(mixer, x[rows, 5:], [1], select(state, rows))
        expected, _ = run_split(mixer, x[:, 5:], [1], state)
        again, _ = run_split(mixer, x[:, 5:], [1], kept)
    torch.testing.assert_close(y, expected[rows], atol=1e-12, rtol=0)
    torch.testing.assert_close(again, expected, atol=0, rtol=0)


def test_state_bytes_do_not_grow_and_its_matrix_stays_float32():
    mixer = build(dtype=torch.bfloat16)
    state = mixer.empty_state(2, 1000, torch.bfloat16)
    # tails of 3 inputs of 48 + 16 + 16 channels in bf16, four heads of 12 x 16 in float32
    assert nbytes(state) == 2 * (3 * (48 + 16 + 16) * 2 + 4 * 12 * 16 * 4)
    y, after = run_split(mixer, inputs(20, dtype=torch.bfloat16), [13, 1, 6], state)
    assert y.dtype == torch.bfloat16
    assert after.ssm.dtype == torch.float32
    assert nbytes(after) == nbytes(state)


def test_initial_decays_and_steps_survive_a_whole_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Mamba2(context(256), head_width=8) for _ in range(2))
            self.readout = nn.Linear(256, 5)

    model = Model()
    initialise(model, seed=3, depth=2)
    for mixer in model.layers:
        steps = F.softplus(mixer.dt_bias.double())
        assert ((steps >= 1e-3 * (1 - 1e-5)) & (steps <= 0.1 * (1 + 1e-5))).all()
        assert steps.log10().mean().item() == pytest.approx(-2, abs=0.25)
        assert ((mixer.A_log.exp() >= 1) & (mixer.A_log.exp() <= 16)).all()
        assert mixer.A_log.exp().mean().item() == pytest.approx(8.5, abs=2)
        assert (mixer.D == 1).all()
        assert (mixer.norm.weight == 1).all()
        assert mixer.convolve_x.weight.abs().max() <= 0.5
    assert not torch.equal(model.layers[0].dt_bias, model.layers[1].dt_bias)


def test_the_inverse_of_softplus():
    mixer = Mamba2(context(64), head_width=8, dt_min=1e-2, dt_max=1e-2)
    initialise(mixer, seed=0)
    assert mixer.dt_bias.tolist() == pytest.approx([-4.6002] * 16, abs=1e-4)


@pytest.mark.parametrize(("head_width", "state_size", "chunk"), [(64, 128, 64), (32, 32, 32), (16, 16, 16), (1, 1, 1)])
def test_the_chunk_goes_by_the_size_of_a_heads_state(head_width, state_size, chunk):
    assert Mamba2(context(64), head_width=head_width, state_size=state_size).chunk == chunk


def test_decay_rates_steps_skips_norms_and_biases_are_vectors():
    found = roles(build(bias=True))
    vectors = {name for name, role in found.items() if role == "vector"}
    products = ("z", "x", "B", "C", "dt", "output")
    assert {name for name in found if name not in vectors} == {f"{name}.weight" for name in products}
    assert found["output.weight"] == "output"


@pytest.mark.parametrize("n_groups", [1, 2])
def test_cost_is_what_the_counter_sees_of_the_naive_form(n_groups):
    mixer, x = build(n_groups=n_groups), inputs(7, batch=1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer.naive(x, Sequence(torch.zeros(1, 7, dtype=torch.long)))
    assert mixer.flops(7, 99) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head_width": 10}, "inner width 48 .* head_width 10"),
        ({"n_groups": 3}, "4 heads .* n_groups 3"),
        ({"chunk": 0}, "chunk is 0"),
        ({"dt_min": 0.2, "dt_max": 0.1}, "dt from 0.2 to 0.1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_ranks_that_cut_a_group_of_heads():
    """Two ranks of six heads in three groups: the second group is on both."""
    arguments = {"expand": 3.0, "state_size": 4, "head_width": 8, "n_groups": 3, "chunk": 4, "bias": True}
    report = check("mamba2", arguments=arguments, laws=["parallel"])
    report.raise_for_failures()
    assert [finding.status for finding in report.findings] == ["passed"]


def test_heads_that_ranks_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"n_heads is 4 .* degree 3: .* possible: 1, 2, 4$"):
        build().parallel_plan(3)
