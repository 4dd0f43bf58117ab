"""A training step of a mixture runs on shapes alone, so that a plan knows its memory."""

from functools import partial

import pytest
import torch
from bakeoff.model import LanguageModel
from bakeoff.model.memory import planned_memory
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.registry import find, names
from bakeoff.testing.build import built
from bakeoff_moe import MixtureOfExperts

ROUTERS = [entry.name for entry in names("router") if entry.package == "bakeoff"]


def model(router):
    mixture = partial(MixtureOfExperts, n_experts=4, expert=partial(MLP, width=64), router=router)
    layer = partial(PreNorm, mixer=partial(Attention, n_heads=2), feed_forward=mixture)
    backbone = partial(Decoder, depth=2, pattern=["layer"], blocks={"layer": layer})
    return LanguageModel(d_model=16, vocab_size=20, max_length=32, backbone=backbone)


@pytest.mark.parametrize("name", ROUTERS)
def test_the_memory_of_every_router_is_known(name):
    router = find(name, "router")
    make = partial(built, router, router.examples()[0])
    memory = planned_memory(lambda: model(make), Causal(), torch.optim.AdamW, rows=2, length=16, documents=True)
    real = model(make)
    assert memory.parameters == sum(t.numel() * t.element_size() for t in [*real.parameters(), *real.buffers()])
    assert memory.activations > 0
