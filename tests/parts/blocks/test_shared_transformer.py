"""One transformer in several blocks: what is shared, what is each one's own, and what they read."""

import bakeoff
import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import Sequence
from bakeoff.model.cost import plan

RECIPE = {
    "model": {
        "d_model": 16,
        "depth": 4,
        "pattern": ["layer", "hybrid"],
        "blocks": {
            "layer": {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 4}, "feed_forward": None},
            "hybrid": {
                "use": "shared_transformer",
                "mixer": {"use": "attention", "n_heads": 4, "window": 4},
                "shared_mixer": {"use": "attention", "n_heads": 4},
                "shared_feed_forward": {"use": "gated_mlp", "width": 24},
                "adapters": {"gates": ["feed_forward.gate", "feed_forward.up"]},
                "adapter_rank": 3,
            },
        },
    },
    "data": {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": 32, "batch_tokens": 32},
    "trainer": {"max_steps": 1},
}
HYBRID = "model.blocks.hybrid"


def model(**changes):
    return bakeoff.recipe(RECIPE).override(changes).build("model", vocab_size=29).initialise(0)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_transformer_is_counted_once_and_its_adapters_for_each_use():
    two, one = model(), model(**{"model.depth": 3})
    assert two.backbone.blocks[1].shared.module is two.backbone.blocks[3].shared.module
    hybrid, adapters = two.backbone.blocks[3], 3 * 16 + 2 * 24 * 3
    assert count(two) - count(one) == count(hybrid) + adapters
    assert count(hybrid) == 4 * 16 * 16 + 16 + 16 * 16  # its mixer, the norm and the map back


def test_two_names_are_two_transformers():
    blocks = {"model.blocks.other": {**RECIPE["model"]["blocks"]["hybrid"], "shared": "second"}}
    both = model(**blocks, **{"model.pattern": ["hybrid", "other"]})
    assert set(both.backbone.shared) == {"transformer", "second"}
    assert len(both.backbone.shared["second"].uses) == 2


def test_each_use_has_a_cache_of_its_own():
    first = model()
    with torch.no_grad():
        state = first.logits(torch.arange(6)[None], first.empty_state(1, 8))[1]
    keys = [state.layers[i]["shared"]["mixer"]["k"] for i in (1, 3)]
    assert keys[0].shape == keys[1].shape
    assert not torch.equal(*keys)


def test_the_embedding_is_what_the_first_block_reads():
    scaled = model(**{"model.embedding_scale": 3.0})
    tokens = torch.arange(5)[None]
    sequence = Sequence(tokens)
    scaled.backbone(sequence)
    assert torch.equal(sequence.memory["embedding"], 3.0 * scaled.backbone.embed(tokens))


def test_without_an_embedding_in_memory():
    with pytest.raises(CapabilityError, match="reads the tokens' embedding; this backbone shows none"):
        model().backbone.blocks[1](torch.zeros(1, 2, 16), Sequence(torch.zeros(1, 2, dtype=torch.long)))


def test_blocks_that_share_a_name_and_not_the_parts():
    other = {**RECIPE["model"]["blocks"]["hybrid"], "adapter_rank": 5}
    with pytest.raises((ValueError, UserError), match=r"share 'transformer', one with rank 3, another with 5"):
        model(**{"model.blocks.other": other, "model.pattern": ["hybrid", "other"]})


def test_a_mixer_that_gives_another_width():
    wide = model(**{f"{HYBRID}.shared_mixer": {"use": "lstm"}, f"{HYBRID}.adapters": {}})
    with pytest.raises(CapabilityError, match="LSTM gives 32 channels where 16 are asked of it"):
        wide.logits(torch.arange(5)[None])


def test_the_plan_shows_what_layers_share():
    layers = {layer.numbers: layer for layer in plan(model(), 32).layers}
    shared = {part.name: part for part in layers[1, 3].parts}["shared by layers"]
    weights = 4 * 32 * 32 - 16 * 32 + 3 * 24 * 16 + 32 + 16
    assert shared.parameters == weights + 2 * (3 * 16 + 2 * 24 * 3)
