"""What a plan says of memory and of decoding counts what is looked up: against a step done for real, and by hand."""

from functools import partial

import pytest
import torch
from bakeoff.evaluate.planning import plan_recipe
from bakeoff.interfaces.neighbours import BATCHED
from bakeoff.model import LanguageModel
from bakeoff.model.cost import plan
from bakeoff.model.memory import Searched, planned_memory, step_memory
from bakeoff.parallel.planner.counting import count_blocks, step_peak
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.recipe import recipe
from bakeoff_retro import Retro

V, T, ROWS, CHUNK, K = 100, 40, 3, 16, 2  # two whole chunks, and a rest
adam = partial(torch.optim.AdamW, lr=1e-3)


def build():
    layer = partial(Retro, mixer=partial(Attention, n_heads=2), feed_forward=MLP, n_heads=2, chunk=CHUNK, k=K)
    backbone = partial(Decoder, depth=2, pattern=["layer"], blocks={"layer": layer})
    return LanguageModel(d_model=32, vocab_size=V, max_length=T, backbone=backbone)


def batch(documents):
    held = {"tokens": torch.ones(ROWS, T + 1, dtype=torch.long)}
    if documents:
        held["documents"] = torch.zeros_like(held["tokens"])
    text = torch.ones(ROWS, 2, K, 2 * CHUNK, dtype=torch.long)
    return held | dict(zip(BATCHED, (text, text == 1, torch.tensor([[15, 31]] * ROWS)), strict=True))


@pytest.mark.parametrize(("documents", "accumulate"), [(False, False), (True, True)])
def test_a_plan_counts_what_a_step_with_neighbours_holds(documents, accumulate):
    told = {"documents": documents, "accumulate": accumulate}
    planned = planned_memory(build, Causal(), adam, rows=ROWS, length=T, searched=Searched(CHUNK, K), **told)
    assert planned == step_memory(build().initialise(0), Causal(), adam, batch(documents), accumulate=accumulate)
    assert planned.activations > 2 * planned_memory(build, Causal(), adam, rows=ROWS, length=T, **told).activations


def test_stages_keep_what_a_whole_step_holds():
    kept = count_blocks(build, Causal(), [0, 1], rows=ROWS, length=T, searched=Searched(CHUNK, K))
    gradients = sum(parameter.numel() * 4 for parameter in build().parameters())
    whole = planned_memory(build, Causal(), adam, rows=ROWS, length=T, searched=Searched(CHUNK, K), accumulate=True)
    assert step_peak(kept, [0.0] * 4, standing=gradients) - gradients == pytest.approx(whole.activations, rel=0.03)


def test_a_recipe_is_planned_with_what_it_looks_up():
    few, many = (plan_recipe(recipe("bakeoff:retrieval/index.yaml", [f"data.retrieval.k={k}"])) for k in (1, 4))
    assert many.memory.activations > 2 * few.memory.activations


def test_a_decoded_token_costs_the_mean_of_its_chunk():
    with torch.device("meta"):
        model = build()
    found = plan(model)
    assert found.decoded == CHUNK
    block, past = model.backbone.layers[0], range(T - CHUNK + 1, T + 1)
    assert found.layers[0].whole.decode_flops * CHUNK == sum(block.flops(1, keys) for keys in past)
