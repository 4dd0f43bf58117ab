"""Rotary encodings for longer sequences: published frequencies, and those of transformers."""

import random
from functools import partial

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.positions.llama3_rope import Llama3RoPE
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.positions.scaled_rope import DynamicNTKRoPE, LinearRoPE, NTKRoPE
from bakeoff.parts.positions.yarn_rope import YaRNRoPE

SCALED = {
    "linear": partial(LinearRoPE, factor=4.0),
    "ntk": partial(NTKRoPE, alpha=8.0),
    "dynamic": partial(DynamicNTKRoPE, factor=2.0, original_length=2048),
    "yarn": partial(YaRNRoPE, factor=16.0, original_length=4096),
    "llama3": partial(Llama3RoPE, factor=8.0, original_length=8192),
}
every_scaling = pytest.mark.parametrize("make", SCALED.values(), ids=SCALED)


def context(head_width=128, max_length=8192):
    return LayerContext(d_model=64, vocab_size=8, max_length=max_length, n_heads=2, head_width=head_width)


def tokens(T):
    return torch.zeros(1, T, dtype=torch.long)


@pytest.mark.parametrize(
    ("name", "pairs", "expected"),
    [
        ("linear", (0, 1, 16, 32, 48, 63), (0.25, 0.21649109, 0.025, 0.0025, 0.00025, 2.8869548e-5)),
        ("dynamic", (0, 1, 32, 63), (1.0, 0.83962578, 0.0037217215, 1.6496886e-5)),
        ("yarn", (0, 1, 16, 32, 48, 63), (1.0, 0.86596435, 0.1, 0.0056730769, 6.25e-5, 7.2173874e-6)),
        (
            "llama3",
            (0, 1, 16, 32, 48, 63),
            (1.0, 0.81461722, 0.037606031, 5.2484602e-4, 6.6478697e-6, 3.0689259e-7),
        ),
    ],
)
def test_published_frequencies(name, pairs, expected):
    found = SCALED[name](context()).table.frequencies()
    torch.testing.assert_close(found[list(pairs)], torch.tensor(expected), rtol=1e-6, atol=0)


def test_a_raised_base_slows_the_slowest_pair_by_alpha_and_the_fastest_not():
    plain, scaled = RoPE(context()), NTKRoPE(context(), alpha=8.0)
    assert scaled.table.base == pytest.approx(82684.62264, rel=1e-9)
    ratio = plain.table.frequencies() / scaled.table.frequencies()
    torch.testing.assert_close(ratio[[0, -1]], torch.tensor([1.0, 8.0]), rtol=1e-5, atol=0)
    assert (ratio[1:] > ratio[:-1]).all()
    assert SCALED["dynamic"](context()).table.base == pytest.approx(72195.86, abs=5e-3)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1, 1.0), (2, 1.06931472), (4, 1.13862944), (8, 1.20794415), (16, 1.2772588722), (32, 1.34657359)],
)
def test_yarn_raises_logits_by_the_square_of_its_attention_factor(factor, expected):
    yarn = YaRNRoPE(context(), factor=factor, original_length=4096)
    assert yarn.table.amplitude == pytest.approx(expected, rel=1e-8)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 5, 2, 128)
    turned_q, turned_k = yarn.rotate(q, k, Sequence(tokens(5)).prepare(yarn.needs()))
    torch.testing.assert_close((turned_q * turned_k).sum(-1), expected**2 * (q * k).sum(-1), rtol=1e-4, atol=1e-4)


def settings(kind, draw):
    """Random arguments of ours, and the same for transformers' function of that kind."""
    factor, base = draw.choice([1.0, 1.5, 4.0, 32.0]), draw.choice([500.0, 1e4, 5e5])
    fraction, original = draw.choice([0.25, 0.5, 1.0]), draw.choice([512, 2048, 4096])
    ours = {"base": base, "fraction": fraction, "factor": factor}
    theirs = {"rope_type": kind, "rope_theta": base, "partial_rotary_factor": fraction, "factor": factor}
    if kind != "linear":
        ours["original_length"] = original
    if kind in ("yarn", "llama3"):
        theirs["original_max_position_embeddings"] = original
    if kind == "yarn":
        ours |= {"beta_fast": draw.uniform(8, 40), "beta_slow": draw.uniform(0.5, 4), "rounded": draw.random() < 0.5}
        ours["attention_factor"] = draw.choice([None, 0.7])
        theirs |= {"beta_fast": ours["beta_fast"], "beta_slow": ours["beta_slow"], "truncate": ours["rounded"]}
        theirs |= {"attention_factor": ours["attention_factor"]}
    if kind == "llama3":
        ours |= {"low": draw.uniform(0.5, 2), "high": draw.uniform(3, 9)}
        theirs |= {"low_freq_factor": ours["low"], "high_freq_factor": ours["high"]}
    return ours, theirs, original


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3"])
@pytest.mark.parametrize("seed", range(12))
def test_tables_are_those_of_transformers(kind, seed):
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    draw = random.Random(seed)
    ours, theirs, original = settings(kind, draw)
    head_width, length = draw.choice([32, 64, 128]), original * draw.choice([1, 2, 16])
    config = LlamaConfig(
        hidden_size=2 * head_width, num_attention_heads=2, head_dim=head_width, rope_parameters=theirs,
        max_position_embeddings=original if kind == "dynamic" else 2 * original,
    )  # fmt: skip
    rope = SCALED[kind].func(context(head_width, length), **ours)
    frequencies, amplitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    torch.testing.assert_close(rope.table.frequencies(), frequencies, rtol=1e-6, atol=0)
    assert getattr(rope.table, "amplitude", 1.0) == pytest.approx(amplitude, rel=1e-12)
    embedding = modeling.LlamaRotaryEmbedding(config)
    places = torch.tensor([[*range(64), length - 1]])  # the last tells theirs how long the sequence is
    cos, sin = (t[0, :-1, 0] for t in rope.table.derive(Sequence(tokens(65), positions=places)))
    their_cos, their_sin = (t[0, :-1] for t in embedding(torch.zeros(1), places))
    sign = torch.tensor([-1.0, 1.0]).repeat_interleave(rope.width // 2)
    torch.testing.assert_close(cos, their_cos, atol=2e-5, rtol=0)
    torch.testing.assert_close(sign * sin, their_sin, atol=2e-5, rtol=0)


@every_scaling
def test_a_row_of_the_table_is_that_of_its_position_however_the_sequence_comes(make):
    table = make(context()).table
    whole = table.derive(Sequence(tokens(40)))
    past, start = Past(1, 64), 0
    for T in (1, 17, 1, 21):
        sequence = Sequence(tokens(T), past=past)
        for part, all_rows in zip(table.derive(sequence), whole, strict=True):
            assert torch.equal(part, all_rows[:, start : start + T])
        past, start = past.advance(sequence), start + T


def test_a_model_no_longer_than_the_original_has_the_plain_base():
    for length in (100, 2048):
        assert SCALED["dynamic"](context(max_length=length)).table == RoPE(context()).table
    assert SCALED["dynamic"](context(max_length=2049)).table.base > 10000


@every_scaling
def test_layers_share_a_table_and_encodings_do_not(make):
    tables = {make(context()).table, make(context()).table}
    assert len(tables) == 1
    assert len(tables | {other(context()).table for other in (RoPE, *SCALED.values())}) == 1 + len(SCALED)


@every_scaling
def test_tables_stay_float32_in_a_bfloat16_model(make):
    attention = Attention(context(), n_heads=2, head_width=128, position=make).to(torch.bfloat16)
    before = make(context()).table.derive(Sequence(tokens(600)))
    for ours, expected in zip(attention.position.table.derive(Sequence(tokens(600))), before, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, expected)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (LinearRoPE, {"factor": 0.5}, "LinearRoPE: factor is 0.5; it must be at least 1"),
        (LinearRoPE, {"factor": float("nan")}, "factor is nan"),
        (NTKRoPE, {"alpha": 0.0}, "NTKRoPE: alpha is 0.0"),
        (NTKRoPE, {"alpha": 2.0, "fraction": 2 / 128}, "NTKRoPE: 2 channels .* at least 4"),
        (DynamicNTKRoPE, {"factor": 2.0, "original_length": 0}, "DynamicNTKRoPE: original_length is 0"),
        (YaRNRoPE, {"factor": 2.0, "original_length": 64, "beta_fast": 1.0}, "beta_slow is 1.0 and beta_fast 1.0"),
        (YaRNRoPE, {"factor": 2.0, "original_length": 64, "attention_factor": 0.0}, "attention_factor is 0.0"),
        (Llama3RoPE, {"factor": 2.0, "original_length": 64, "low": 4.0}, "low is 4.0 and high 4.0"),
        (Llama3RoPE, {"factor": 2.0, "original_length": 64, "base": 1.0}, "Llama3RoPE: base is 1.0"),
        (YaRNRoPE, {"factor": 2.0, "original_length": 64, "fraction": 0.0}, "YaRNRoPE: head_width 128"),
    ],
)
def test_numbers_out_of_range_are_refused(make, arguments, message):
    with pytest.raises(UserError, match=message):
        make(context(), **arguments)


@pytest.mark.parametrize("length", [4, 1 << 30])
def test_yarn_far_from_any_turn_interpolates_or_keeps_all_but_the_first(length):
    plain, yarn = RoPE(context()).table.frequencies(), YaRNRoPE(context(), factor=4.0, original_length=length)
    ratio = plain / yarn.table.frequencies()
    torch.testing.assert_close(ratio[1:], torch.full((63,), 4.0 if length == 4 else 1.0))
