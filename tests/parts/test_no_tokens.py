"""Every mixer that is shipped takes a call of no tokens: nothing comes out, and a state stays what it was."""

import bakeoff
import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence, init
from bakeoff.interfaces.state import tensors
from bakeoff.parts.needs import gather
from bakeoff.recipe.building import factory

SHIPPED = [entry.name for entry in bakeoff.names("mixer") if entry.package == "bakeoff"]


@pytest.mark.parametrize("name", SHIPPED)
def test_no_tokens(name):
    arguments = bakeoff.find(name, "mixer").examples()[0]
    mixer = factory({"use": name, **arguments}, "mixer")(
        LayerContext(d_model=16, vocab_size=8, max_length=8, n_heads=4)
    )
    init.initialise(mixer, seed=0)
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        past, state = Past(2, 8), mixer.empty_state(2, 8)
        for tokens in (x, x[:, :0]):
            sequence = Sequence(torch.zeros(tokens.shape[:2], dtype=torch.long), past=past).prepare(gather(mixer))
            before = [t.clone() for t in tensors(state)]
            y, state, *_ = mixer(tokens, sequence, state)
            past = past.advance(sequence)
        assert y.shape == (2, 0, 16)
        for held, kept in zip(tensors(state), before, strict=True):
            assert torch.equal(held, kept)
        assert past.longest == 3
        alone = Sequence(torch.zeros(2, 0, dtype=torch.long)).prepare(gather(mixer))
        assert mixer(x[:, :0], alone).y.shape == (2, 0, 16)
