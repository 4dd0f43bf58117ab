"""Work as others count it: torch's counter on transformers' models, the rule of thumb, Chinchilla's table A4."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from bakeoff.interfaces import LayerContext
from bakeoff.interfaces.state import nbytes
from bakeoff.model import LanguageModel
from bakeoff.model.cost import count_parameters, formula_flops, plan, roofline
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.feed_forwards.mlp import MLP
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def decoder(d: int, depth: int, length: int, vocab: int, mixer: Any, feed_forward: Any = MLP) -> LanguageModel:
    """On the meta device."""

    def block(context: LayerContext) -> PreNorm:
        return PreNorm(context, mixer=mixer, feed_forward=feed_forward)

    def backbone(context: LayerContext) -> Decoder:
        return Decoder(context, depth=depth, pattern=["layer"], blocks={"layer": block})

    with torch.device("meta"):
        return LanguageModel(d_model=d, vocab_size=vocab, max_length=length, backbone=backbone)


def counted(model: nn.Module, length: int) -> int:
    """Forward operations of one row, every query by every key, as torch counts them."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, length, dtype=torch.long))
    return counter.get_total_flops()


@pytest.mark.parametrize(("depth", "d", "length"), [(2, 64, 32), (4, 128, 64), (3, 96, 128)])
def test_gpt2_of_transformers_does_the_work_that_is_declared(depth: int, d: int, length: int):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=depth, n_embd=d, n_head=4, n_positions=length, vocab_size=100)
    model = decoder(d, depth, length, 100, partial(Attention, n_heads=4))
    rectangle = length * model.flops(1, length)
    assert rectangle == counted(transformers.GPT2LMHeadModel(config), length)
    assert rectangle == 2 * 12 * depth * d**2 * length + 4 * depth * length**2 * d + 2 * length * d * 100
    # of the rectangle, a causal model is to do the part under the diagonal
    hidden = length * (length - 1) // 2
    assert model.flops(length, length) == rectangle - 4 * d * depth * hidden


def test_llama_of_transformers_does_the_work_that_is_declared():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=176,
        vocab_size=100,
    )  # fmt: skip
    model = decoder(64, 2, 32, 100, partial(Attention, n_heads=4, n_kv_heads=2), partial(GatedMLP, width=176))
    assert 32 * model.flops(1, 32) == counted(transformers.LlamaForCausalLM(config), 32) == 6_832_128


def test_the_rule_of_thumb_is_exact_for_a_decoder_of_its_shape():
    d, depth, T = 96, 3, 64
    found = plan(decoder(d, depth, T, 50, partial(Attention, n_heads=4)))
    N = 12 * depth * d**2
    assert formula_flops(N, T, d) == 6 * N + 12 * depth * T * d
    assert 3 * (found.whole.decode_flops - found.head.decode_flops) == formula_flops(N, T, d)


@pytest.mark.parametrize(
    ("length", "d", "ratio"),
    [(1024, 1600, 1.1067), (2048, 12288, 1.0278), (8192, 12288, 1.1111), (32768, 12288, 1.4444)],
    ids=["GPT-2", "GPT-3", "GPT-3 at 8k", "GPT-3 at 32k"],
)
def test_the_rule_of_thumb_at_published_widths(length: int, d: int, ratio: float):
    assert formula_flops(1, length, d) / 6 == pytest.approx(ratio, abs=5e-5)


@pytest.mark.parametrize(
    ("depth", "d", "width", "heads", "head_width", "ratio"),
    [
        (10, 640, 2560, 10, 64, "1.03"),
        (20, 1024, 4096, 16, 64, "1.10"),
        (24, 1280, 5120, 10, 128, "1.08"),
        (26, 1792, 7168, 14, 128, "1.04"),
        (28, 2048, 8192, 16, 128, "1.03"),
        (40, 3584, 14336, 28, 128, "0.99"),
    ],
    ids=["73M", "305M", "552M", "1.1B", "1.6B", "6.8B"],
)
def test_chinchillas_table_of_work_over_6_n_d(depth: int, d: int, width: int, heads: int, head_width: int, ratio: str):
    # Hoffmann et al., table A4: its figures leave embedding and readout out, see every key, count three operations for
    # each logit of the softmax, and have a fifth matrix of attention (relative positions) among the parameters only
    s, V = 2048, 32000
    model = decoder(d, depth, s, V, partial(Attention, n_heads=heads, head_width=head_width), partial(MLP, width=width))
    norms = (2 * depth + 1) * d
    N = count_parameters(model).without_embeddings - norms + depth * d**2 + V * d
    assert 13 * depth * d**2 + V * d == N
    forward = s * (model.flops(1, s) - model.head.flops(1, s)) + depth * 3 * heads * s**2
    assert f"{3 * forward / (6 * N * s):.2f}" == ratio


@pytest.mark.parametrize(
    ("batch", "gigabytes", "seconds", "speed"),
    [(1, 26.87, 8.0208e-3, 124.68), (64, 79.72, 23.796e-3, 2689.5), (256, 240.78, 71.87e-3, 3561.8)],
)
def test_decoding_roofline_of_llama_2_13b_on_an_h100(batch: int, gigabytes: float, seconds: float, speed: float):
    model = decoder(5120, 40, 1024, 32000, partial(Attention, n_heads=40), partial(GatedMLP, width=13824))
    found = plan(model.to(torch.bfloat16))
    assert found.whole.state == 838_860_800
    norms = 81 * 5120
    weights = 2 * (found.parameters.without_embeddings - norms + 2 * 32000 * 5120)
    assert weights == 2 * 13_015_449_600
    bound = roofline(weights, found.whole.state, batch, 3.35e12)
    assert bound.read / 1e9 == pytest.approx(gigabytes, rel=1e-4)
    assert bound.seconds == pytest.approx(seconds, rel=1e-4)
    assert bound.tokens_per_second == pytest.approx(speed, rel=1e-4)


def test_intensity_of_decoding():
    # in bfloat16 a weight is read once for all rows, and a key and its value once for their own
    layer = decoder(64, 1, 1024, 10, partial(Attention, n_heads=4)).to(torch.bfloat16).backbone.layers[0]
    weights = sum(parameter.nbytes for parameter in layer.feed_forward.parameters())
    assert roofline(weights, 0, 5, 1e9, layer.feed_forward.flops(1, 1)).intensity == 5
    keys = layer.mixer.flops(1, 1024) - 2 * sum(parameter.numel() for parameter in layer.mixer.parameters())
    with torch.no_grad():
        state = nbytes(layer.mixer.empty_state(1, 1024, torch.bfloat16, "meta"))
    assert roofline(0, state, 5, 1e9, keys).intensity == 1
