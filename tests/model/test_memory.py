"""Planned memory against the same step done for real, and against sums by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from bakeoff.interfaces import LayerContext
from bakeoff.model import LanguageModel
from bakeoff.model.memory import Live, Memory, planned_memory, step_memory
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from torch import nn

V, T, ROWS = 100, 64, 4
adam = partial(torch.optim.AdamW, lr=1e-3)
sgd = partial(torch.optim.SGD, lr=1e-3)


def build(window: int | None = None) -> LanguageModel:
    def block(context: LayerContext) -> PreNorm:
        mixer = partial(Attention, n_heads=2, window=window)
        return PreNorm(context, mixer=mixer, feed_forward=GatedMLP, dropout=0.1)

    def backbone(context: LayerContext) -> Decoder:
        return Decoder(context, depth=2, pattern=["layer"], blocks={"layer": block})

    return LanguageModel(d_model=32, vocab_size=V, max_length=T, backbone=backbone)


def real(model: LanguageModel, optimizer: Any, *, documents: bool = False, **options: Any) -> Memory:
    batch = {"tokens": torch.zeros(ROWS, T + 1, dtype=torch.long)}
    if documents:
        batch["documents"] = torch.zeros_like(batch["tokens"])
    return step_memory(model.initialise(seed=0), Causal(), optimizer, batch, **options)


@pytest.mark.parametrize(
    ("window", "optimizer", "documents", "accumulate"),
    [(None, adam, False, False), (16, adam, True, False), (None, sgd, True, True)],
)
def test_a_plan_counts_what_the_step_itself_holds(window: Any, optimizer: Any, documents: bool, accumulate: bool):
    planned = planned_memory(
        partial(build, window), Causal(), optimizer, rows=ROWS, length=T, documents=documents, accumulate=accumulate
    )
    assert planned == real(build(window), optimizer, documents=documents, accumulate=accumulate)


class Weighed(Causal):
    """Another term, with a weight of its own."""

    def forward(self, model: Any, batch: Any) -> Any:
        terms, statistics = super().forward(model, batch)
        total, weight = terms["loss"]
        return {"loss": terms["loss"], "own": (total * 2, weight * 2)}, statistics


@pytest.mark.parametrize(("options", "copies"), [({}, 0), ({"ranks": 2}, 1), ({"accumulate": True}, 2)])
def test_a_plan_counts_gradients_that_are_kept_apart(options: Any, copies: int):
    # where a micro-batch is no whole step, the term's gradients (and their sum with what was) stand beside the others
    batch = {"tokens": torch.zeros(ROWS, T + 1, dtype=torch.long)}
    planned = planned_memory(build, Weighed(), sgd, rows=ROWS, length=T, **options)
    assert planned == step_memory(build().initialise(seed=0), Weighed(), sgd, batch, **options)
    plain = planned_memory(build, Causal(), sgd, rows=ROWS, length=T, **options)
    assert copies <= (planned.activations - plain.activations) / planned.gradients < copies + 1


def test_a_plan_counts_states_that_go_on():
    told = {"documents": True, "accumulate": True, "carried": 3}
    planned = planned_memory(partial(build, 16), Causal(), adam, rows=ROWS, length=T, **told)
    assert planned == real(build(16), adam, **told)
    # keys and values of 15 tokens, 2 layers; of places index, position, document and real; three numbers of each row
    row = 2 * 2 * 15 * 32 * 4 + 15 * (3 * 8 + 1) + 3 * 8
    assert planned.states == 2 * 3 * ROWS * row


def test_what_stands_beside_the_activations_by_hand():
    count = sum(parameter.numel() for parameter in build().parameters())
    steps = 4 * len(list(build().parameters()))  # AdamW's counter, a float32 for each tensor
    with_adam = planned_memory(build, Causal(), adam, rows=ROWS, length=T)
    assert with_adam[:3] == (4 * count, 4 * count, 8 * count + steps)
    assert planned_memory(build, Causal(), sgd, rows=ROWS, length=T).optimizer == 0
    assert with_adam.peak == sum(with_adam)


def test_lower_precision_takes_less():
    options: dict[str, Any] = {"rows": ROWS, "length": T}
    full = planned_memory(build, Causal(), adam, **options)
    half = planned_memory(build, Causal(), adam, dtype=torch.bfloat16, **options)
    mixed = planned_memory(build, Causal(), adam, mixed=torch.bfloat16, **options)
    assert half.parameters == full.parameters // 2
    assert mixed.parameters == full.parameters
    assert mixed.activations < full.activations


def test_activations_grow_with_the_rows():
    small, large = (planned_memory(build, Causal(), adam, rows=rows, length=T).activations for rows in (8, 16))
    assert 1.8 < large / small < 2.2


def test_live_bytes_by_hand():
    with Live() as live:
        x = torch.ones(250)  # 1000 bytes
        y = x + x
        view = y[:10]
        assert (live.now, live.peak) == (2000, 2000)
        del y
        assert live.now == 2000  # the view holds the storage
        del view
        assert (live.now, live.peak) == (1000, 2000)


def test_backward_keeps_what_it_needs_and_no_more():
    # linear 10 -> 20, relu, linear 20 -> 1: backward needs the input and the relu's output
    net = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 1, bias=False))
    x = torch.ones(100, 10)
    with Live() as live:
        y = net(x)
        live.note(x)
    # the input, the relu's output, the result, and both weights
    assert live.now == 4 * (100 * 10 + 100 * 20 + 100 * 1) + 4 * (10 * 20 + 20)
    del y
