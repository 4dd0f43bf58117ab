"""Attention without positions: order enters by what each token may see, and by nothing else."""

from functools import partial

import pytest
import torch
from bakeoff.interfaces import Sequence
from bakeoff.model import LanguageModel
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP


@pytest.mark.parametrize("visible", ["causal", "bidirectional"])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_last_token_knows_the_order_of_its_context_by_the_causal_mask_of_a_layer_below(depth, visible):
    block = partial(PreNorm, mixer=partial(Attention, n_heads=4), feed_forward=MLP)
    backbone = partial(Decoder, depth=depth, pattern=["layer"], blocks={"layer": block})
    model = LanguageModel(backbone=backbone, d_model=32, vocab_size=50, max_length=12).initialise(0).double().eval()
    order = torch.tensor([4, 1, 7, 0, 10, 2, 9, 3, 6, 8, 5, 11])
    tokens = torch.randperm(50, generator=torch.Generator().manual_seed(0))[None, :12]
    with torch.no_grad():
        last, shuffled = (model.backbone(Sequence(t, visibility=visible)).y[0, -1] for t in (tokens, tokens[:, order]))
    moved = (shuffled - last).abs().max()
    if depth == 1 or visible == "bidirectional":
        assert moved < 1e-12
    else:
        assert moved > 1e-4
