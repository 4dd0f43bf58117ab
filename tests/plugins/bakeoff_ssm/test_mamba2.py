"""Mamba-2 against transformers' mixer, and what it owes to documents, padding, splits and initialisation."""

import pytest
import torch
from torch import nn
from transformers import Mamba2Config
from transformers.cache_utils import DynamicCache
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff_ssm import Mamba2
from bakeoff_ssm.ssd import ssd_naive

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


def run(mixer, x, state=None, **described):
    tokens = torch.zeros(x.shape[:2], dtype=torch.long)
    return mixer(x, Sequence(tokens, **described), state)


def inputs(T, batch=2, dtype=torch.float64, d_model=D, seed=1):
    return torch.randn(batch, T, d_model, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("T", [1, 7, 8, 9, 30])
def test_equals_transformers_outputs_and_gradients(T, n_groups):
    mixer = build(dtype=torch.float32, n_groups=n_groups)
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
