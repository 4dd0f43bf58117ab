"""Mamba against transformers' mixer, and its initialisation, roles, state and sizes."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.interfaces.state import nbytes
from bakeoff_ssm import Mamba
from torch import nn
from torch.nn import functional as F
from transformers import JambaConfig, MambaConfig
from transformers.cache_utils import DynamicCache
from transformers.models.jamba.modeling_jamba import JambaMambaMixer
from transformers.models.mamba.modeling_mamba import MambaMixer

D = 24


def build(seed=0, dtype=torch.float64, d_model=D, **arguments):
    mixer = Mamba(LayerContext(d_model=d_model, vocab_size=50, max_length=128), **arguments)
    initialise(mixer, seed=seed)
    return mixer.to(dtype)


def norms(context):
    from bakeoff.parts.norms import RMSNorm

    return RMSNorm(context, eps=1e-6)


def peer(mixer):
    if mixer.dt_norm is None:
        config = MambaConfig(hidden_size=D, num_hidden_layers=1, vocab_size=50)
        other = MambaMixer(config, 0)
    else:
        config = JambaConfig(hidden_size=D, num_hidden_layers=1, mamba_dt_rank="auto", attn_layer_offset=3)
        other = JambaMambaMixer(config, 0)
    with torch.no_grad():
        other.in_proj.weight.copy_(torch.cat([mixer.x.weight, mixer.z.weight]))
        other.conv1d.weight.copy_(mixer.convolve.weight[:, None])
        other.conv1d.bias.copy_(mixer.convolve.bias)
        other.x_proj.weight.copy_(torch.cat([mixer.dt_low.weight, mixer.B.weight, mixer.C.weight]))
        other.dt_proj.weight.copy_(mixer.dt.weight)
        other.dt_proj.bias.copy_(mixer.dt_bias)
        other.A_log.copy_(mixer.A_log)
        other.D.copy_(mixer.D)
        other.out_proj.weight.copy_(mixer.output.weight)
        if mixer.dt_norm is not None:
            theirs = (other.dt_layernorm, other.b_layernorm, other.c_layernorm)
            for norm, copy in zip((mixer.dt_norm, mixer.B_norm, mixer.C_norm), theirs, strict=True):
                norm.weight.copy_(torch.rand(norm.weight.shape) + 0.5)
                copy.weight.copy_(norm.weight)
    return other, config


def run(mixer, x, state=None, past=None, **described):
    return mixer(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long), past=past, **described), state)


def inputs(T, batch=2, dtype=torch.float32, seed=1):
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("norm_inputs", [None, norms])
@pytest.mark.parametrize("T", [1, 7, 40])
def test_equals_transformers_outputs_and_gradients(T, norm_inputs):
    mixer = build(dtype=torch.float32, norm_inputs=norm_inputs)
    other, _ = peer(mixer)
    x = inputs(T)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = run(mixer, mine).y, other(theirs)
    torch.testing.assert_close(y, expected, atol=2e-6, rtol=2e-5)
    weight = inputs(T, seed=2)
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, atol=2e-5, rtol=1e-4)
    pairs = [
        (mixer.A_log, other.A_log),
        (mixer.D, other.D),
        (mixer.dt_bias, other.dt_proj.bias),
        (mixer.dt.weight, other.dt_proj.weight),
        (mixer.output.weight, other.out_proj.weight),
    ]
    for own, published in pairs:
        torch.testing.assert_close(own.grad, published.grad, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_equals_transformers_token_by_token():
    mixer = build(dtype=torch.float32)
    other, config = peer(mixer)
    x = inputs(12)
    cache, state = DynamicCache(config=config), mixer.empty_state(2, 12)
    for first, last in [(0, 5), *((t, t + 1) for t in range(5, 12))]:
        expected = other(x[:, first:last], cache=cache)
        y, state, *_ = run(mixer, x[:, first:last], state)
        torch.testing.assert_close(y, expected, atol=2e-6, rtol=2e-5)


def test_a_prompt_shorter_than_the_convolution_leaves_its_tail_to_the_right():
    """Width 4, two tokens: the state of the convolution is (0, x_0, x_1)."""
    mixer, x = build(), inputs(2, dtype=torch.float64)
    state = run(mixer, x, mixer.empty_state(2, 9, torch.float64)).state
    torch.testing.assert_close(state.x[:, 1:], mixer.x(x))
    assert state.x[:, 0].abs().max() == 0


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
def test_single_tokens_equal_the_whole(T):
    mixer, x = build(), inputs(T, dtype=torch.float64)
    state, past, ys = mixer.empty_state(2, 128, torch.float64), Past(2, 128), []
    for t in range(T):
        sequence = Sequence(torch.zeros(2, 1, dtype=torch.long), past=past)
        y, state, *_ = mixer(x[:, t : t + 1], sequence, state)
        past = past.advance(sequence)
        ys.append(y)
    whole = run(mixer, x, mixer.empty_state(2, 128, torch.float64))
    torch.testing.assert_close(torch.cat(ys, 1), whole.y, atol=1e-8, rtol=0)
    for a, b in zip(state, whole.state, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=0)


def test_initial_rates_and_steps_survive_a_whole_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            context = LayerContext(d_model=256, vocab_size=50, max_length=128)
            self.layers = nn.ModuleList(Mamba(context) for _ in range(2))
            self.readout = nn.Linear(256, 5)

    with torch.device("meta"):
        model = Model()
    model.to_empty(device="cpu")
    initialise(model, seed=3, depth=2)
    for mixer in model.layers:
        steps = F.softplus(mixer.dt_bias.double())
        assert ((steps >= 1e-3 * (1 - 1e-5)) & (steps <= 0.1 * (1 + 1e-5))).all()
        assert steps.log10().mean().item() == pytest.approx(-2, abs=0.1)
        expected = torch.arange(1, 17).float().log().expand(512, 16)
        torch.testing.assert_close(mixer.A_log.detach(), expected)
        assert (mixer.D == 1).all()
        assert mixer.dt.weight.shape == (512, 16)
        assert mixer.dt.weight.abs().max().item() == pytest.approx(0.25, rel=1e-2)  # uniform within dt_rank^-0.5
    assert not torch.equal(model.layers[0].dt_bias, model.layers[1].dt_bias)


@pytest.mark.parametrize(("dt", "bias"), [(1e-3, -6.9073), (1e-2, -4.6002), (1e-1, -2.2522)])
def test_the_inverse_of_softplus(dt, bias):
    mixer = build(dt_min=dt, dt_max=dt)
    assert mixer.dt_bias.tolist() == pytest.approx([bias] * 48, abs=1e-4)


def test_decay_rates_steps_skips_and_biases_are_vectors():
    found = roles(build(bias=True, norm_inputs=norms))
    products = ("z", "x", "dt_low", "B", "C", "dt", "output")
    assert {name for name, role in found.items() if role != "vector"} == {f"{name}.weight" for name in products}
    assert found["output.weight"] == "output"


def test_state_bytes_do_not_grow_and_the_state_stays_float32():
    mixer = build(dtype=torch.bfloat16)
    state = mixer.empty_state(2, 1000, torch.bfloat16)
    # tails of 3 inputs of 48 channels in bf16, 16 states of each in float32
    assert nbytes(state) == 2 * (3 * 48 * 2 + 48 * 16 * 4)
    y, after = run(mixer, inputs(20, dtype=torch.bfloat16), state)[:2]
    assert y.dtype == torch.bfloat16
    assert after.ssm.dtype == torch.float32
    assert nbytes(after) == nbytes(state)


def test_no_tokens_leave_the_state_as_it_is():
    mixer = build(dtype=torch.float32)
    state = run(mixer, inputs(5), mixer.empty_state(2, 9)).state
    y, after = run(mixer, inputs(0), state)[:2]
    assert y.shape == run(mixer, inputs(0)).y.shape == (2, 0, D)
    for a, b in zip(after, state, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expand": 0.01}, "inner width 0 .*expand 0.01"),
        ({"state_size": 0}, "state_size 0"),
        ({"dt_rank": 0}, "dt_rank 0"),
        ({"dt_min": 0.2, "dt_max": 0.1}, "dt from 0.2 to 0.1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
