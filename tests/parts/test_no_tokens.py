"""Every mixer that is shipped takes a call of no tokens: nothing comes out, and a state stays what it was."""

import bakeoff
import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence, init
from bakeoff.interfaces.state import tensors
from bakeoff.parts.needs import gather
from bakeoff.recipe.building import factory

SHIPPED = [
    pytest.param(entry.name, arguments, id=f"{entry.name}-{number}")
    for entry in bakeoff.names("mixer")
    if entry.package == "bakeoff"
    for number, arguments in enumerate(bakeoff.find(entry.name, "mixer").examples())
]


@pytest.mark.parametrize(("name", "arguments"), SHIPPED)
def test_no_tokens(name, arguments):
    mixer = factory({"use": name, **arguments}, "mixer")(
        LayerContext(d_model=16, vocab_size=8, max_length=8, n_heads=4)
    )
    init.initialise(mixer, seed=0)
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        past, state = Past(2, 8), mixer.empty_state(2, 8)
        for tokens in (x, x[:, :0]):
            sequence = described(mixer, tokens, past)
            before = [t.clone() for t in tensors(state)]
            y, state, *_ = mixer(tokens, sequence, state)
            past = past.advance(sequence)
        assert y.shape == (2, 0, 16)
        for held, kept in zip(tensors(state), before, strict=True):
            assert torch.equal(held, kept)
        assert past.longest == 3
        none = x[:, :0]
        assert mixer(none, described(mixer, none)).y.shape == (2, 0, 16)


def described(mixer, x, past=None):
    """The sequence of a call, with something for whatever the mixer reads of earlier layers."""
    memory = dict.fromkeys(mixer.reads, x)
    return Sequence(torch.zeros(x.shape[:2], dtype=torch.long), past=past, memory=memory).prepare(gather(mixer))
