"""Gated DeltaNet against the layers of transformers, and what it owes to documents, padding and initialisation."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.interfaces.state import nbytes
from bakeoff_linear import GatedDeltaNet
from torch.nn import functional as F
from transformers import OlmoHybridConfig, Qwen3NextConfig
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

D, HEADS = 24, {"n_heads": 4, "n_key_heads": 2, "key_width": 6, "value_width": 8}
SIZES = {
    "hidden_size": D,
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "eos_token_id": 0,
}


def build(seed=0, dtype=torch.float32, d_model=D, **arguments):
    mixer = GatedDeltaNet(LayerContext(d_model=d_model, vocab_size=50, max_length=128), **HEADS | arguments)
    initialise(mixer, seed=seed)
    return mixer.to(dtype)


def inputs(T, batch=2, dtype=torch.float32, seed=1):
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def run(mixer, x, state=None, past=None, **described):
    return mixer(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long), past=past, **described), state)


def grouped(weights, heads=2):
    """Rows of all, a share of each for every head of keys."""
    return torch.cat([w.unflatten(0, (heads, -1)) for w in weights], 1).flatten(0, 1)


def qwen(mixer):
    other = Qwen3NextGatedDeltaNet(Qwen3NextConfig(**SIZES), 0)
    with torch.no_grad():
        other.in_proj_qkvz.weight.copy_(grouped([getattr(mixer, n).weight for n in ("query", "key", "value", "gate")]))
        other.in_proj_ba.weight.copy_(grouped([mixer.beta.weight, mixer.decay.weight]))
        other.norm.weight.copy_(mixer.norm.weight)
        other.out_proj.weight.copy_(mixer.output.weight)
    return other


def olmo(mixer):
    other = OlmoHybridGatedDeltaNet(OlmoHybridConfig(**SIZES), 0)
    names = {"q": "query", "k": "key", "v": "value", "a": "decay", "b": "beta", "g": "gate", "o": "output"}
    with torch.no_grad():
        for theirs, ours in names.items():
            getattr(other, f"{theirs}_proj").weight.copy_(getattr(mixer, ours).weight)
        other.o_norm.weight.copy_(mixer.norm.weight)
    return other


PEERS = {"qwen3_next": (qwen, False), "olmo_hybrid": (olmo, True)}


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("T", [1, 7, 70])
def test_equals_transformers_outputs_and_gradients(peer, T):
    make, negative = PEERS[peer]
    mixer = build(negative_eigenvalues=negative)
    other = make(mixer)
    convolutions = (mixer.convolve_query, mixer.convolve_key, mixer.convolve_value)
    with torch.no_grad():
        other.conv1d.weight.copy_(torch.cat([c.weight for c in convolutions])[:, None])
        for name in ("A_log", "dt_bias"):
            getattr(other, name).copy_(getattr(mixer, name))
    x = inputs(T)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = run(mixer, mine).y, other(theirs)
    torch.testing.assert_close(y, expected, atol=2e-5, rtol=1e-4)
    weight = inputs(T, seed=2)
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-3)
    for name in ("A_log", "dt_bias"):
        torch.testing.assert_close(getattr(mixer, name).grad, getattr(other, name).grad, atol=1e-4, rtol=1e-3)
    conv = torch.cat([c.weight.grad for c in convolutions])
    torch.testing.assert_close(conv, other.conv1d.weight.grad[:, 0], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("prompt", [1, 2, 3, 4, 5])
def test_short_prompts_and_single_tokens_equal_the_whole(prompt):
    mixer, x = build(dtype=torch.float64), inputs(prompt + 5, dtype=torch.float64)
    past, state, rows = Past(2, 16), mixer.empty_state(2, 16, x.dtype), []
    whole = run(mixer, x).y
    for here in x.split([prompt, 1, 1, 1, 1, 1], 1):
        sequence = Sequence(torch.zeros(here.shape[:2], dtype=torch.long), past=past)
        y, state, *_ = mixer(here, sequence, state)
        past = past.advance(sequence)
        rows.append(y)
    torch.testing.assert_close(torch.cat(rows, 1), whole, atol=1e-12, rtol=0)


def test_state_bytes_do_not_grow_and_its_matrix_stays_float32():
    mixer = build(dtype=torch.bfloat16)
    state = mixer.empty_state(2, 1000, torch.bfloat16)
    # tails of 3 inputs of 12 + 12 + 32 channels in bf16, four heads of 8 x 6 in float32
    assert nbytes(state) == 2 * (3 * (12 + 12 + 32) * 2 + 4 * 8 * 6 * 4)
    y, after, *_ = run(mixer, inputs(20, dtype=torch.bfloat16), state, Past(2, 1000))
    assert y.dtype == torch.bfloat16
    assert after.memory.dtype == torch.float32
    assert nbytes(after) == nbytes(state)


def test_initial_decays_and_steps_are_the_published_ones():
    mixer = build(d_model=256, n_heads=64, n_key_heads=64)
    steps, rates = F.softplus(mixer.dt_bias.double()), mixer.A_log.exp()
    assert ((steps >= 1e-3 * (1 - 1e-5)) & (steps <= 0.1 * (1 + 1e-5))).all()
    assert steps.log10().mean().item() == pytest.approx(-2, abs=0.25)
    assert ((rates >= 0.0099) & (rates <= 16)).all()
    assert rates.mean().item() == pytest.approx(8, abs=2)
    # the inverse of softplus, by hand
    assert build(dt_min=1e-2, dt_max=1e-2).dt_bias.tolist() == pytest.approx([-4.6002] * 4, abs=1e-4)


def test_decay_rates_steps_norms_and_convolutions_are_vectors():
    found = roles(build())
    products = ("query", "key", "value", "beta", "decay", "gate", "output")
    assert {name for name, role in found.items() if role != "vector"} == {f"{name}.weight" for name in products}
    assert found["output.weight"] == "output"


def test_published_widths_are_the_defaults():
    # d 2048 with 6 heads: keys of 3/4 d, values of 3/2 d
    with torch.device("meta"):
        mixer = GatedDeltaNet(LayerContext(d_model=2048, vocab_size=1, max_length=1), n_heads=6)
    assert (mixer.key_width, mixer.value_width) == (256, 512)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_heads": 4, "n_key_heads": 3}, "n_heads is 4 and n_key_heads 3"),
        ({"key_width": None, "n_key_heads": 4, "n_heads": 4, "d_model": 25}, "d_model 25 .* 4 key heads"),
        ({"n_heads": 0}, "n_heads is 0"),
        ({"chunk": 48}, "chunk is 48; it must be a power of two"),
        ({"chunk": 0}, "chunk is 0"),
        ({"dt_min": 0.2, "dt_max": 0.1}, "dt from 0.2 to 0.1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
