"""Counts against published figures, figures by hand, and torch's own counter."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import FeedForward, LayerContext, Result, Sequence, SequenceMixer
from bakeoff.model import LanguageModel
from bakeoff.model.cost import count_parameters, plan, roofline
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.norms import LayerNorm
from bakeoff.parts.positions.learned import LearnedPosition
from bakeoff.parts.vocabulary import Vocabulary
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def language_model(
    d: int, vocab: int, length: int, depth: int, mixer: Any, feed_forward: Any, *, tied: bool = True, **options: Any
) -> LanguageModel:
    """A decoder of one kind of layer, on the meta device; options of the block and of the decoder."""
    norm = options.pop("norm", None)
    extra = {} if norm is None else {"norm": norm}

    def block(context: LayerContext) -> PreNorm:
        return PreNorm(context, mixer=mixer, feed_forward=feed_forward, **extra)

    def backbone(context: LayerContext) -> Decoder:
        return Decoder(context, depth=depth, pattern=["layer"], blocks={"layer": block}, **extra, **options)

    with torch.device("meta"):
        return LanguageModel(d_model=d, vocab_size=vocab, max_length=length, backbone=backbone, tied_embedding=tied)


def small(**options: Any) -> LanguageModel:
    window = options.pop("window", None)
    mixer = partial(Attention, n_heads=4, window=window)
    return language_model(64, 1000, 256, 2, mixer, partial(GatedMLP, width=128), **options)


def test_forward_work_by_hand():
    # 2 x (4 x 64^2 + 3 x 64 x 128 + 2 x 64 keys) x 2 layers + 2 x 1000 x 64
    found = plan(small())
    assert found.head.decode_flops == 128_000
    assert found.whole.decode_flops == 422_912
    # training: on average (256 + 1) / 2 keys are seen
    assert found.whole.flops == 422_912 - 4 * 64 * 2 * (256 - 128.5)
    assert found.training_flops == 3 * found.whole.flops


def test_a_window_is_counted_as_what_it_shows():
    assert plan(small(window=64)).whole.decode_flops == 324_608
    # rows 0..63 see 1..64 keys, all later ones 64
    pairs = 64 * 65 // 2 + 192 * 64
    assert plan(small(window=64)).whole.flops == 324_608 + 4 * 64 * 2 * (pairs / 256 - 64)


def test_tied_and_untied_heads_do_the_same_work():
    tied, untied = plan(small()), plan(small(tied=False))
    assert tied.whole.flops == untied.whole.flops
    assert untied.parameters.total - tied.parameters.total == 64_000
    assert untied.parameters.without_embeddings == tied.parameters.without_embeddings
    assert tied.read_bytes == untied.read_bytes == tied.weight_bytes  # an untied table is only looked up in


def test_state_is_what_keys_and_values_take():
    # 2 layers x (keys, values) x 256 x 64 x 4 bytes; a window of 64 keeps 64
    assert plan(small()).whole.state == 2 * 2 * 256 * 64 * 4
    assert plan(small(window=64)).whole.state == 2 * 2 * 64 * 64 * 4
    assert plan(small(), length=128).whole.state == 2 * 2 * 128 * 64 * 4


def test_layers_that_are_alike_stand_together():
    found = plan(small())
    (layer,) = found.layers
    assert layer.numbers == (0, 1)
    assert {part.name: part.component for part in layer.parts} == {
        "mixer": "attention",
        "feed_forward": "gated_mlp",
        "mixer_norm": "rms_norm",
        "feed_forward_norm": "rms_norm",
    }
    assert sum(part.parameters for part in layer.parts) == layer.whole.parameters
    assert sum(part.flops for part in layer.parts) == layer.whole.flops
    assert found.whole.flops == 2 * layer.whole.flops + found.head.flops


def random_model(seed: int) -> tuple[LanguageModel, int]:
    draw = random.Random(seed)
    heads, kv = draw.choice([(2, 1), (4, 2), (4, 4), (6, 3)])
    width = draw.choice([4, 8, 12])
    d, T = draw.choice([16, 24, 48]), draw.choice([5, 16, 33])
    mixer = partial(Attention, n_heads=heads, n_kv_heads=kv, head_width=width, output_gate=draw.random() < 0.3)
    feed_forward = draw.choice([partial(MLP, width=draw.choice([20, 64])), partial(GatedMLP, multiple_of=8)])
    options = {"tied": draw.random() < 0.5}
    return language_model(d, draw.choice([11, 100]), T, draw.choice([1, 3]), mixer, feed_forward, **options), T


@pytest.mark.parametrize("seed", range(20))
def test_the_count_equals_the_counter_of_torch(seed: int):
    model, T = random_model(seed)
    model.initialise(seed=0)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.logits(torch.zeros(3, T, dtype=torch.long))
    # the counter sees the whole rectangle of queries and keys: T times what the last query does
    assert counter.get_total_flops() == 3 * T * model.flops(1, T)
    mixers = [layer.mixer for layer in model.backbone.layers]
    hidden = sum(4 * mixer.n_heads * mixer.head_width * T * (T - 1) // 2 for mixer in mixers)
    assert counter.get_total_flops() - 3 * hidden == 3 * model.flops(T, T)


def test_backward_is_twice_the_forward():
    model, T = random_model(3)
    model.initialise(seed=0)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.logits(torch.zeros(2, T, dtype=torch.long))[0].sum().backward()
    assert counter.get_total_flops() == 3 * 2 * T * model.flops(1, T)


def test_work_adds_up_over_any_split():
    model = small(window=64)
    assert model.flops(256, 256) == sum(model.flops(1, keys) for keys in range(1, 257))
    assert model.flops(256, 256) == model.flops(100, 100) + model.flops(156, 256)


def gpt2(d: int, depth: int, heads: int) -> LanguageModel:
    mixer = partial(Attention, n_heads=heads, bias=True, output_bias=True)
    return language_model(
        d, 50257, 1024, depth, mixer, partial(MLP, bias=True), norm=LayerNorm, position=LearnedPosition
    )


def llama(d: int, depth: int, heads: int, width: int, kv: int | None = None, vocab: int = 32000) -> LanguageModel:
    mixer = partial(Attention, n_heads=heads, n_kv_heads=kv)
    return language_model(d, vocab, 1024, depth, mixer, partial(GatedMLP, width=width), tied=False)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (partial(gpt2, 768, 12, 12), 124_439_808),
        (partial(gpt2, 1024, 24, 16), 354_823_168),
        (partial(gpt2, 1280, 36, 20), 774_030_080),
        (partial(gpt2, 1600, 48, 25), 1_557_611_200),
        (partial(llama, 4096, 32, 32, 11008), 6_738_415_616),
        (partial(llama, 5120, 40, 40, 13824), 13_015_864_320),
        (partial(llama, 6656, 60, 52, 17920), 32_528_943_616),
        (partial(llama, 8192, 80, 64, 22016), 65_285_660_672),
        (partial(llama, 8192, 80, 64, 28672, 8), 68_976_648_192),
        (partial(llama, 4096, 32, 32, 14336, 8, 128256), 8_030_261_248),
    ],
    ids=["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "7B", "13B", "33B", "65B", "Llama-2-70B", "Llama-3-8B"],
)
def test_published_parameter_counts(model: Any, parameters: int):
    assert count_parameters(model()).total == parameters


def test_intensity_is_operations_a_byte():
    assert roofline(100, 20, 5, 10.0, flops=40).intensity == 5 * 40 / 200
    assert roofline(100, 20, 5, 10.0).intensity is None
    # one row: two operations for each weight of four bytes, and fewer once a state is read
    assert plan(small(), length=1).decode(1, 1e9).intensity == pytest.approx(0.5, rel=0.01)


class Chosen(FeedForward):
    """Holds `n` matrices, of which a token uses one."""

    def __init__(self, context: LayerContext, *, n: int):
        super().__init__(context)
        self.n = n
        self.weight = nn.Parameter(torch.empty(n, context.d_model, context.d_model))

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        return Result(x @ self.weight[0], state)

    def flops(self, queries: int, keys: int) -> int:
        return 2 * queries * self.weight[0].numel()

    def idle(self) -> int:
        return (self.n - 1) * self.weight[0].numel()


def test_what_a_token_does_not_use_is_held_and_not_read():
    mixer = partial(Attention, n_heads=4)
    one, eight = (plan(language_model(16, 50, 8, 2, mixer, partial(Chosen, n=n), tied=False)) for n in (1, 8))
    idle = 2 * 7 * 16 * 16
    assert (one.parameters.idle, eight.parameters.idle) == (0, idle)
    assert eight.parameters.total - one.parameters.total == idle
    assert eight.parameters.active == one.parameters.active == one.parameters.total
    assert eight.parameters.active_without_embeddings == one.parameters.without_embeddings
    assert eight.weight_bytes - one.weight_bytes == 4 * idle
    assert eight.read_bytes == one.read_bytes == eight.decode(1, 1e9).read - eight.whole.state
    assert (eight.whole.flops, eight.formula_flops) == (one.whole.flops, one.formula_flops)


def test_rows_that_choose_for_themselves_read_more_and_in_the_end_all():
    # two rows take the same of 4 matrices a quarter of the time: 1 3/4 of them on average
    found = plan(language_model(16, 50, 8, 2, partial(Attention, n_heads=4), partial(Chosen, n=4)))
    matrix = 4 * 16 * 16
    assert found.read_by(1) == found.read_bytes
    assert found.read_by(2) == found.read_bytes + 2 * matrix * 3 / 4
    assert found.read_by(1000) == found.weight_bytes
    assert found.decode(2, 1e9).read == found.read_by(2) + 2 * found.whole.state


class Undeclared(SequenceMixer):
    """Says neither what it costs nor what it keeps."""

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        return Result(x)


def test_what_a_part_does_not_declare_is_left_open_and_said():
    found = plan(language_model(16, 50, 8, 2, Undeclared, MLP))
    assert found.whole.flops is found.whole.decode_flops is found.whole.state is found.training_flops is None
    assert found.decode(1, 1e9) is None
    (layer,) = found.layers
    assert {part.name: part.flops for part in layer.parts}["mixer"] is None
    assert {part.name: part.flops for part in layer.parts}["feed_forward"] == 2 * 2 * 16 * 64
    assert any("Undeclared declares no cost" in note for note in found.notes)
    assert any("Undeclared keeps no state" in note for note in found.notes)
    with pytest.raises(CapabilityError):
        language_model(16, 50, 8, 2, Undeclared, MLP).flops(1, 1)


def test_a_head_that_is_tied_costs_work_and_no_parameters_of_its_own():
    context = LayerContext(d_model=64, vocab_size=1000, max_length=8)
    assert Vocabulary(context).flops(1, 1) == 128_000
    assert count_parameters(small()).total - count_parameters(small()).without_embeddings == 64_000
