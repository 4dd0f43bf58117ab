"""The short convolution on the kernels of `causal_conv1d`, which a plain sum in its documented layout stands in for."""

import importlib
import sys
import types

import pytest
import torch
from bakeoff.interfaces import LayerContext
from bakeoff.parts import kernels
from bakeoff.parts.short_convolution import ShortConvolution, short_convolution_naive

B, T, C = 3, 7, 8
SEGMENTS = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 2, 2, 3, 3]])


def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, activation=None):
    """x (B, C, T), its channels side by side in memory; a tap sees inputs of the same `seq_idx`, int32, only."""
    assert initial_states is activation is None
    assert x.stride(1) == 1
    assert x.shape[1] % 8 == x.stride(0) % 8 == x.stride(2) % 8 == 0
    assert 2 <= weight.shape[1] <= 4
    y = torch.zeros_like(x) if bias is None else bias[:, None].expand_as(x)
    for k in range(min(weight.shape[1], x.shape[2])):
        seen = x[:, :, : x.shape[2] - k] * weight[:, -1 - k, None]
        if seq_idx is not None:
            assert seq_idx.dtype == torch.int32
            assert seq_idx.is_contiguous()
            seen = seen * (seq_idx[:, k:] == seq_idx[:, : x.shape[2] - k])[:, None]
        y = y + torch.nn.functional.pad(seen, (k, 0))
    return y


@pytest.fixture
def form(monkeypatch):
    package = types.ModuleType("causal_conv1d")
    package.causal_conv1d_fn = causal_conv1d_fn
    monkeypatch.setitem(sys.modules, "causal_conv1d", package)
    monkeypatch.delitem(sys.modules, "bakeoff.parts.short_convolution_kernels", raising=False)
    return importlib.import_module("bakeoff.parts.short_convolution_kernels").short_convolution


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one document", "documents"])
@pytest.mark.parametrize("continued", [False, True], ids=["alone", "continued"])
@pytest.mark.parametrize("width", [2, 4])
def test_values_and_gradients(form, width, continued, segments):
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, T, C), (C, width), (C,), (B, width - 1, C)]
    given = [torch.randn(*s, dtype=torch.float64, generator=generator, requires_grad=True) for s in shapes]
    x, weight, bias, tail = given
    found = []
    for each in (form, short_convolution_naive):
        y = each(x, weight, bias, tail if continued else None, segments)
        found.append([y, *torch.autograd.grad(y.sin().sum(), given if continued else given[:3])])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("channels", "width", "told"),
    [
        (16, 4, "kernels (causal_conv1d)"),
        (12, 4, "torch (channels are 12, no multiple of 8)"),
        (16, 5, "torch (width is 5, not 2 to 4)"),
        (16, 1, "torch (width is 1, not 2 to 4)"),
    ],
)
def test_sizes_that_kernels_take(monkeypatch, recwarn, channels, width, told):
    monkeypatch.setattr(kernels, "_gpu", lambda: True)
    monkeypatch.setattr(kernels, "_installed", lambda package: True)
    context = LayerContext(d_model=8, vocab_size=8, max_length=8)
    convolution = ShortConvolution(context, channels=channels, width=width)
    assert kernels.choices(convolution, torch.device("cuda")) == {"short_convolution": told}
