"""The gated convolution against torch's convolution."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff_linear import GatedConvolution
from torch.nn import functional as F


def build(d_model=6, **arguments):
    mixer = GatedConvolution(LayerContext(d_model=d_model, vocab_size=1, max_length=64), **arguments)
    initialise(mixer, seed=0)
    return mixer.double()


@pytest.mark.parametrize("conv_bias", [False, True])
def test_equals_torchs_convolution(conv_bias):
    mixer = build(conv_bias=conv_bias)
    x = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight, bias = mixer.convolve.weight[:, None], mixer.convolve.bias
    convolved = F.conv1d(mixer.x(x).mT, weight, bias, padding=2, groups=12)[..., :9].mT
    expected = mixer.output(F.silu(convolved) * mixer.z(x))
    y = mixer(x, Sequence(torch.zeros(2, 9, dtype=torch.long))).y
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("prompt", [1, 2, 3, 4, 5])
def test_short_prompts_and_then_single_tokens_equal_the_whole(prompt):
    mixer, T = build(), prompt + 5
    x = torch.randn(2, T, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    past, state, ys, start = Past(2, 64), mixer.empty_state(2, 64, torch.float64), [], 0
    for length in [prompt, *[1] * 5]:
        here = Sequence(torch.zeros(2, length, dtype=torch.long), past=past)
        y, state, *_ = mixer(x[:, start : start + length], here, state)
        past, start = past.advance(here), start + length
        ys.append(y)
    whole = mixer(x, Sequence(torch.zeros(2, T, dtype=torch.long))).y
    torch.testing.assert_close(torch.cat(ys, 1), whole, atol=1e-12, rtol=0)


def test_parameters_of_the_published_layer():
    mixer = build(1024)
    assert sum(p.numel() for p in mixer.parameters()) == 6 * 1024**2 + 5 * 1024 + 3 * 2048


def test_no_inner_channels_are_refused():
    with pytest.raises(ValueError, match=r"expand 0.01 of d_model 6 gives 0 inner channels"):
        build(expand=0.01)
