"""Blocks that are computed anew in backward: the same losses and gradients, bit for bit, in less memory."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from bakeoff.interfaces import LayerContext, Result
from bakeoff.interfaces.mixer import SequenceMixer
from bakeoff.model import LanguageModel
from bakeoff.model.memory import Live, Memory, planned_memory, step_memory
from bakeoff.model.recompute import MODES, recompute, recompute_blocks, recomputed_flops
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.linear import Linear
from bakeoff.recipe.building import factory

V, T, ROWS = 50, 24, 3
adam = partial(torch.optim.AdamW, lr=1e-3)
ATTENTION = {"use": "attention", "n_heads": 2, "position": {"use": "rope"}}
NOISY = {
    "use": "mixture_of_experts",
    "n_experts": 4,
    "expert": {"use": "mlp"},
    "router": {"use": "noisy_top_k", "k": 2},
    "balance": [{"use": "load_balance"}],
}
anew = pytest.mark.parametrize("mode", MODES[1:])


def build(mixer: Any = None, feed_forward: Any = None, *, depth: int = 3, width: int = 32) -> LanguageModel:
    block = {"use": "pre_norm", "mixer": mixer or ATTENTION, "dropout": 0.1}
    block["feed_forward"] = feed_forward or {"use": "gated_mlp"}

    def backbone(context: LayerContext) -> Decoder:
        return Decoder(context, depth=depth, pattern=["layer"], blocks={"layer": factory(block, "block")})

    return LanguageModel(d_model=width, vocab_size=V, max_length=64, backbone=backbone)


def batch(length: int = T) -> dict[str, torch.Tensor]:
    tokens = torch.randint(V, (ROWS, length + 1), generator=torch.Generator().manual_seed(0))
    return {"tokens": tokens, "documents": (torch.arange(length + 1) // 9).expand_as(tokens)}


def total_of(model: LanguageModel) -> torch.Tensor:
    torch.manual_seed(3)
    terms, _ = Causal()(model, batch())
    return sum((value for value, _ in terms.values()), torch.zeros(()))


def losses_and_gradients(model: LanguageModel, mode: str) -> list[torch.Tensor]:
    recompute_blocks(model.backbone, mode)
    model.zero_grad()
    loss = total_of(model)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@anew
@pytest.mark.parametrize(
    ("mixer", "feed_forward"),
    [
        (ATTENTION, None),
        ({**ATTENTION, "window": 5, "sinks": True}, None),
        ({"use": "mamba"}, None),
        ({"use": "rwkv7", "head_width": 8}, {"use": "rwkv_channel_mix"}),  # its first layer shows values to all later
        (ATTENTION, NOISY),
        (ATTENTION, {**NOISY, "router": {"use": "reinforce_router"}}),  # shows choices that the loss of tokens teaches
    ],
    ids=["attention", "window", "mamba", "memory", "noise", "feedback"],
)
def test_losses_and_gradients_are_the_same(mode: str, mixer: Any, feed_forward: Any):
    model = build(mixer, feed_forward).initialise(seed=0).train()
    wanted = losses_and_gradients(model, "none")
    assert equal(losses_and_gradients(model, mode), wanted)
    assert equal(losses_and_gradients(model, "none"), wanted)


class Handing(SequenceMixer):
    """Adds what the layer before showed, and shows its own under the same name."""

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.output = Linear(context.d_model, context.d_model)

    def forward(self, x: torch.Tensor, sequence: Any, state: Any = None) -> Result:
        y = self.output(x).tanh() * sequence.memory.get("handed", sequence.memory["embedding"]).sin()
        return Result(y, memory={"handed": y})


@anew
def test_what_later_blocks_show_is_not_seen(mode: str):
    def backbone(context: LayerContext) -> Decoder:
        blocks = {"layer": partial(PreNorm, mixer=Handing, feed_forward=None)}
        return Decoder(context, depth=3, pattern=["layer"], blocks=blocks)

    model = LanguageModel(d_model=16, vocab_size=V, max_length=64, backbone=backbone).initialise(seed=0)
    assert equal(losses_and_gradients(model, mode), losses_and_gradients(model, "none"))


@anew
def test_a_graph_is_differentiated_twice(mode: str):
    model = build().initialise(seed=0).train()
    found = {}
    for each in ("none", mode):
        recompute_blocks(model.backbone, each)
        loss = total_of(model)
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        found[each] = [*first, *torch.autograd.grad(loss, list(model.parameters()))]
    assert equal(found["none"], found[mode])


class Doubling(SequenceMixer):
    """Changes the result of a product in place."""

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.output = Linear(context.d_model, context.d_model)

    def forward(self, x: torch.Tensor, sequence: Any, state: Any = None) -> Result:
        return Result(self.output(x).mul_(2).sigmoid() * x)


def test_a_product_that_is_changed_in_place_is_computed_anew():
    part = Doubling(LayerContext(d_model=8, vocab_size=V, max_length=T))
    torch.nn.init.normal_(part.output.weight)
    given = torch.randn(2, 4, 8)
    found = []
    for mode in ("none", "selective"):
        recompute(part, mode)
        x = given.clone().requires_grad_()
        sequence = type("Seen", (), {"as_seen": lambda self: self})()
        found.append(torch.autograd.grad(part(x, sequence).y.square().sum(), [x, part.output.weight]))
    assert all(map(torch.equal, *found))


@anew
def test_a_copy_computes_with_its_own_parameters(mode: str):
    model = build().initialise(seed=0).train()
    recompute_blocks(model.backbone, mode)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert total_of(twin) != total_of(model)
    assert twin.state_dict().keys() == build().state_dict().keys()


def test_evaluation_is_as_ever():
    model = build().initialise(seed=0).eval()
    wanted = model.logits(batch()["tokens"])[0]
    recompute_blocks(model.backbone, "full")
    with torch.no_grad():
        assert torch.equal(model.logits(batch()["tokens"])[0], wanted)


def test_an_unknown_mode():
    with pytest.raises(ValueError, match="recompute is 'some'; it must be one of none, selective, full"):
        recompute_blocks(build().backbone, "some")


def measured(mode: str, **more: Any) -> Memory:
    model = build(**more).initialise(seed=0)
    recompute_blocks(model.backbone, mode)
    rows = {"tokens": torch.zeros(ROWS, 65, dtype=torch.long)}
    return step_memory(model, Causal(), adam, rows)


@pytest.mark.parametrize("mixer", [ATTENTION, {"use": "mamba"}, {"use": "rwkv7", "head_width": 8}], ids=str)
def test_less_is_held_and_a_plan_says_how_much(mixer: Any):
    found = {}
    for mode in MODES:
        found[mode] = measured(mode, mixer=mixer, depth=4)
        make = partial(build, mixer, depth=4)
        assert planned_memory(make, Causal(), adam, rows=ROWS, length=64, recompute=mode) == found[mode]
    assert found["none"].peak > found["selective"].peak > found["full"].peak
    assert len({memory[:3] for memory in found.values()}) == 1  # it is activations that differ


def test_what_full_keeps_by_hand():
    # of each layer more, what it is given: 3 rows x 64 tokens x 32 channels x 4 bytes
    held = {}
    for depth in (2, 6):
        model = build(depth=depth).initialise(seed=0)
        recompute_blocks(model.backbone, "full")
        with Live() as live:
            live.note(list(model.parameters()))
            before = live.now
            terms, _ = Causal()(model, {"tokens": torch.zeros(ROWS, 65, dtype=torch.long)})
            held[depth] = live.now - before
        del terms
    assert held[6] - held[2] == 4 * (ROWS * 64 * 32 * 4)


def test_what_is_done_anew_by_hand():
    # a gated MLP of width w: three products of 32 x w; attention: four of 32 x 32, and 2 x 2 x 32 for a visible pair
    model = build(depth=2)
    w = model.backbone.blocks[0].feed_forward.up.out_features
    pairs = 64 * 65 / 2
    forward = 2 * (2 * (4 * 32 * 32 + 3 * 32 * w) + 4 * 32 * pairs / 64)
    assert recomputed_flops(model, 64, "none") == 0
    assert recomputed_flops(model, 64, "full") == pytest.approx(forward)
    assert recomputed_flops(model, 64, "selective") == 0  # all of it is kept: products and fused attention


def test_experts_are_done_anew():
    # their products are written into one place, group by group: two of four experts, each of two products
    model = build(feed_forward={**NOISY, "router": {"use": "top_k", "k": 2}}, depth=1)
    width = model.backbone.blocks[0].feed_forward.experts.up.weight.shape[1]
    assert recomputed_flops(model, 64, "selective") == 2 * 2 * (2 * 32 * width)
