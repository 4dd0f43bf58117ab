"""Building a mixer alone, and running it whole and in chunks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.needs import gather
from torch import nn


def build(*, d_model=32, max_length=64, n_heads=4, seed=0, dtype=torch.float64, **arguments):
    """An initialised `Attention`; what layers share is filled with it. Norm gains and sinks are not left at 1 and 0."""
    context = LayerContext(d_model=d_model, vocab_size=16, max_length=max_length)
    mixer = Attention(context, n_heads=n_heads, **arguments)
    initialise(nn.ModuleList([mixer, *context.parts.values()]), seed=seed)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for parameter in mixer.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 2)
    for module in (mixer, *context.parts.values()):
        module.to(dtype)
    return mixer


def place(mixer, tokens, **what):
    """A prepared sequence."""
    return Sequence(tokens, **what).prepare(gather(mixer))


def run(mixer, x, **what):
    """Outputs without a state."""
    return mixer(x, place(mixer, x.new_zeros(x.shape[:2], dtype=torch.long), **what)).y


def in_chunks(mixer, x, sizes, *, real=None, documents=None, max_length=64, state=None, past=None):
    """Outputs of chunks through the state; `(y, state, past)`."""
    B = x.shape[0]
    state = mixer.empty_state(B, max_length, x.dtype) if state is None else state
    past = Past(B, max_length) if past is None else past
    outputs, at = [], 0
    for size in sizes:
        cut = slice(at, at + size)
        at += size
        sequence = place(
            mixer,
            x.new_zeros(B, size, dtype=torch.long),
            past=past,
            real=None if real is None else real[:, cut],
            documents=None if documents is None else documents[:, cut],
        )
        result = mixer(x[:, cut], sequence, state)
        outputs.append(result.y)
        state, past = result.state, past.advance(sequence)
    assert at == x.shape[1]
    return torch.cat(outputs, 1), state, past


@pytest.fixture
def attention():
    """Helpers: build, place, run, in_chunks."""
    return SimpleNamespace(build=build, place=place, run=run, in_chunks=in_chunks)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
