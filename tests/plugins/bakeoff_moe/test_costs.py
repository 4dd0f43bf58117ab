"""What a mixture holds, what one token uses of it, and what a step keeps in memory."""

from functools import partial

import torch
from bakeoff.model import LanguageModel
from bakeoff.model.cost import plan
from bakeoff.model.memory import planned_memory, step_memory
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff_moe import MixtureOfExperts, TopK

D, WIDTH, E, V, T = 32, 64, 8, 100, 64
EXPERT = 3 * D * WIDTH


def model(k=2, shared=None, depth=2):
    mixture = partial(
        MixtureOfExperts, n_experts=E, expert=partial(GatedMLP, width=WIDTH), router=partial(TopK, k=k), shared=shared
    )
    layer = partial(PreNorm, mixer=partial(Attention, n_heads=2), feed_forward=mixture)
    backbone = partial(Decoder, depth=depth, pattern=["layer"], blocks={"layer": layer})
    return LanguageModel(d_model=D, vocab_size=V, max_length=T, backbone=backbone)


def test_a_token_uses_the_experts_that_it_goes_to():
    found = plan(model(k=3, shared=partial(GatedMLP, width=2 * WIDTH)))
    assert found.parameters.idle == 2 * 5 * EXPERT
    assert plan(model(k=E)).parameters.idle == 0


def test_decoding_reads_of_the_experts_those_that_are_chosen():
    shared = partial(GatedMLP, width=2 * WIDTH)
    found = plan(model(shared=shared))
    assert found.weight_bytes - found.read_bytes == 4 * 2 * 6 * EXPERT
    # of two rows, both leave an expert with probability (6 / 8)^2
    assert found.weight_bytes - found.read_by(2) == 4 * 2 * 8 * EXPERT * (6 / 8) ** 2
    assert found.read_by(10_000) == found.weight_bytes


def test_a_planned_step_holds_what_the_step_itself_holds():
    rows, adam = 4, partial(torch.optim.AdamW, lr=1e-3)
    tokens = torch.randint(V, (rows, T + 1), generator=torch.Generator().manual_seed(0))
    real = step_memory(model().initialise(seed=0), Causal(), adam, {"tokens": tokens})
    assert planned_memory(model, Causal(), adam, rows=rows, length=T) == real
