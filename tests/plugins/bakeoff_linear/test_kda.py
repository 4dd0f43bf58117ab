"""Kimi Delta Attention against the layer of transformers, and its initialisation."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff_linear import KDA
from torch.nn import functional as F
from transformers import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

D = 24
CONFIG = KimiLinearConfig(hidden_size=D, num_hidden_layers=4, linear_num_heads=4, linear_head_dim=6)
NAMES = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "b_proj": "beta",
    "g_a_proj": "gate_down",
    "g_b_proj": "gate_up",
    "forget_gate.f_a_proj": "decay_down",
    "forget_gate.f_b_proj": "decay_up",
    "o_norm": "norm",
    "o_proj": "output",
}


def build(d_model=D, dtype=torch.float32, **arguments):
    mixer = KDA(LayerContext(d_model=d_model, vocab_size=50, max_length=128), **{"n_heads": 4} | arguments)
    initialise(mixer, seed=0)
    return mixer.to(dtype)


def inputs(T, seed=1):
    return torch.randn(2, T, D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("T", [1, 7, 70])
def test_equals_transformers_outputs_and_gradients(T):
    mixer, other = build(), KimiLinearDeltaAttention(CONFIG, 0)
    convolutions = (mixer.convolve_query, mixer.convolve_key, mixer.convolve_value)
    with torch.no_grad():
        for theirs, ours in NAMES.items():
            other.get_submodule(theirs).weight.copy_(mixer.get_submodule(ours).weight)
        other.conv1d.weight.copy_(torch.cat([c.weight for c in convolutions])[:, None])
        other.forget_gate.A_log.copy_(mixer.A_log.view(1, 1, -1, 1))
        other.forget_gate.dt_bias.copy_(mixer.dt_bias)
    x, weight = inputs(T), inputs(T, seed=2)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = mixer(mine, Sequence(torch.zeros(2, T, dtype=torch.long))).y, other(theirs)
    torch.testing.assert_close(y, expected, atol=2e-5, rtol=1e-4)
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(mixer.A_log.grad, other.forget_gate.A_log.grad.flatten(), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(mixer.dt_bias.grad, other.forget_gate.dt_bias.grad, atol=1e-4, rtol=1e-3)
    for theirs, ours in NAMES.items():
        expected = other.get_submodule(theirs).weight.grad
        torch.testing.assert_close(mixer.get_submodule(ours).weight.grad, expected, atol=1e-4, rtol=1e-3, msg=ours)


def test_initial_decays_are_the_published_ones():
    mixer = build(256, n_heads=64)
    steps, rates = F.softplus(mixer.dt_bias.double()), mixer.A_log.exp()
    assert steps.shape == (256,)
    assert ((steps >= 1e-3 * (1 - 1e-5)) & (steps <= 0.1 * (1 + 1e-5))).all()
    assert steps.log10().mean().item() == pytest.approx(-2, abs=0.15)
    assert ((rates >= 1 - 1e-5) & (rates <= 16)).all()
    assert rates.mean().item() == pytest.approx(8.5, abs=2)


def test_decay_rates_and_steps_are_vectors():
    assert {name for name, role in roles(build()).items() if role == "vector"} == {
        "A_log", "dt_bias", "norm.weight", "convolve_query.weight", "convolve_key.weight", "convolve_value.weight",
    }  # fmt: skip


def test_heads_must_share_the_width():
    with pytest.raises(ValueError, match="n_heads is 5 and d_model 24"):
        build(n_heads=5)
