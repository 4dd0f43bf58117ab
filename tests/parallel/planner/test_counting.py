"""Activations by the block against the papers' formulas, and against what a whole step holds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from bakeoff.interfaces import AttentionOp, Capabilities, LayerContext
from bakeoff.model import LanguageModel
from bakeoff.model.memory import planned_memory
from bakeoff.parallel.planner.counting import Kept, count_blocks, count_optimizer, step_peak
from bakeoff.parallel.planner.memory import block_activations, constant_part, score_part
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.attention.sdpa import SDPA
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.norms import LayerNorm
from bakeoff.train.master_weights import with_masters
from torch import Tensor

D, H, T, B, V = 96, 12, 128, 2, 512
adam = partial(torch.optim.AdamW, lr=1e-3)


class Eager(AttentionOp):
    """Attention as Korthikanti et al. count it: scores held, their softmax dropped out, all in the type of `q`."""

    capabilities = Capabilities(documents=True, state=True, tensor_parallel=True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sequence: Any, **_: Any) -> tuple[Tensor, None]:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = torch.dropout(scores.softmax(-1), 0.1, True)
        return (weights @ v).transpose(1, 2), None


def build(
    op: Any = Eager,
    dropout: float = 0.1,
    tied: bool = True,
    depth: int = 4,
) -> LanguageModel:
    def block(context: LayerContext) -> PreNorm:
        mixer = partial(Attention, n_heads=H, op=op)
        return PreNorm(context, mixer=mixer, feed_forward=MLP, norm=LayerNorm, dropout=dropout)

    def backbone(context: LayerContext) -> Decoder:
        return Decoder(
            context, depth=depth, pattern=["layer"], blocks={"layer": block}, norm=LayerNorm, dropout=dropout
        )

    return LanguageModel(d_model=D, vocab_size=V, max_length=T, backbone=backbone, tied_embedding=tied)


def blocks(layers: list[int], **options: Any) -> list[Kept]:
    model = options.pop("model", build)
    return count_blocks(model, Causal(), layers, rows=B, length=T, **options)


def test_a_block_keeps_what_the_formula_says():
    # Korthikanti et al., equation 2: 34 + 5 a s / h = 34 + 80 bytes a token and channel; our norms keep float32 inputs
    _, block, _, _ = blocks([0, 3], dtype=torch.bfloat16)
    assert block.activations == pytest.approx(block_activations(B, T, D, H), rel=0.1)


def test_what_tensor_ranks_share_is_what_the_formula_divides():
    # 24 + 80 of 34 + 80 are divided by t
    _, block, _, _ = blocks([0, 3], dtype=torch.bfloat16)
    assert block.split == pytest.approx(B * T * D * (24 + score_part(T, D, H)), rel=0.1)
    assert block.split / block.activations == pytest.approx(1 - constant_part(10**9) / (34 + 80), rel=0.1)


def test_recomputation_keeps_what_the_block_is_given():
    block = blocks([0, 3], dtype=torch.bfloat16, recompute="full")[1]
    noise_state = 16 * 1024  # of the generator, to draw the same noise again
    assert 0 <= block.activations - block_activations(B, T, D, H, recompute="full") < noise_state
    plain = blocks([0, 3], dtype=torch.bfloat16)[1]
    assert block.working > plain.activations  # all of it stands there in the block's backward


@pytest.mark.parametrize("mixed", [None, torch.bfloat16])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("tied", [True, False])
def test_stages_add_up_to_what_a_step_holds(tied: bool, recompute: str, mixed: torch.dtype | None):
    model = partial(build, op=SDPA, dropout=0.0, tied=tied)
    before, block, last, head = blocks([0, 3], model=model, recompute=recompute, mixed=mixed)
    stages = [before, block, block, block, last, head]
    told: dict[str, Any] = {"rows": B, "length": T, "recompute": recompute, "mixed": mixed, "accumulate": True}
    step = planned_memory(model, Causal(), adam, **told)
    most = step_peak(stages, [0.0] * 6, recompute=recompute)
    assert most == pytest.approx(step.activations, rel=0.1)


def test_copies_of_parameters_by_hand():
    # autocast casts the weights of six products in each block: 12 D^2 elements of 2 bytes
    _, block, _, head = blocks([0, 3], mixed=torch.bfloat16)
    assert block.copies == 12 * D * D * 2
    assert head.copies == 0  # a fused loss needs its own no more when the forward is over
    assert [one.copies for one in blocks([0, 3])] == [0, 0, 0, 0]


def test_what_optimizers_keep_and_need():
    states, _ = count_optimizer(build, adam)
    assert states == pytest.approx(2, rel=1e-3)  # two moments
    assert count_optimizer(build, partial(torch.optim.SGD, lr=1.0, foreach=False)) == (0, 0)
    # a float32 parameter and two float32 moments beside each in 16 bits
    states, _ = count_optimizer(build, with_masters(adam), torch.bfloat16)
    assert states == pytest.approx(6, rel=1e-3)


def test_nothing_is_allocated():
    # 12 D^2 = 51 G parameters a block: 206 GB in float32
    def huge() -> LanguageModel:
        def block(context: LayerContext) -> PreNorm:
            return PreNorm(context, mixer=None, feed_forward=partial(MLP, width=2**19))

        def backbone(context: LayerContext) -> Decoder:
            return Decoder(context, depth=2, pattern=["layer"], blocks={"layer": block})

        return LanguageModel(d_model=2**16, vocab_size=V, max_length=T, backbone=backbone)

    block = blocks([0, 1], model=huge)[1]
    assert block.activations > B * T * 2**19 * 4 * 2  # what goes into the activation, and what comes out
