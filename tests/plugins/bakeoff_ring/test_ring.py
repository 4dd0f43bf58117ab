"""Attention over ranks computes what other libraries compute of whole rows; each case runs on all ranks over gloo."""

from functools import partial
from pathlib import Path

import pytest
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import Capabilities, LayerContext
from bakeoff.interfaces.spans import ORDERS
from bakeoff.model import LanguageModel
from bakeoff.parallel.context import refuse_rows
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.positions.sinusoidal import SinusoidalPosition
from bakeoff.registry import find
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_on_ranks.py")
OPTIONS = {
    "plain": {},
    "grouped": {"scale": 0.3, "n_kv_heads": 2},
    "narrow_values": {"value_width": 3},
    "wide_values": {"value_width": 8},
    "window": {"window": 5, "n_kv_heads": 2},
    "long_window": {"window": 12},
    "soft_cap": {"soft_cap": 0.7, "n_kv_heads": 2},
    "capped_window": {"soft_cap": 0.7, "window": 5, "documents": True},
    "bias": {"bias": 1, "n_kv_heads": 2},
    "bias_of_rows": {"bias": 2, "window": 6, "documents": True},
    "sinks": {"sinks": True, "n_kv_heads": 2},
    "documents": {"documents": True, "sinks": True},
    "padding": {"real": "ends", "documents": True},
    "padding_between": {"real": "between", "window": 3},
    "bidirectional": {"visibility": "bidirectional"},
    "bidirectional_window": {"visibility": "bidirectional", "window": 4},
    "prefix": {"visibility": "prefix", "documents": False},
    "prefix_window": {"visibility": "prefix", "window": 7, "sinks": True, "bias": 1},
    "recompute": {"recompute": True},
}


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    """Two, and four, processes."""
    return shared_ranks(request.param)


def place(n_kv_heads):
    """Where an op of 12 query heads stands."""
    heads = {"n_heads": 12, "n_kv_heads": n_kv_heads, "head_width": 2}
    return LayerContext(d_model=24, vocab_size=1, max_length=64, **heads)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_ring_equals_the_whole(ranks, options):
    # 2 P tokens are spans of one under zigzag
    ranks.run(CASES, "equals_whole", op="ring", lengths=[19, 2 * ranks.n], **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_heads_exchanged_for_tokens_equal_the_whole(ranks, options):
    heads = {"n_kv_heads": max(options.get("n_kv_heads", 4), ranks.n)}
    ranks.run(CASES, "equals_whole", op="ulysses", lengths=[19, 2 * ranks.n], **{**options, **heads})


@pytest.mark.slow
def test_capped_logits_are_those_of_transformers():
    capped = {"soft_cap": 0.7, "n_kv_heads": 2, "window": 5}
    shared_ranks(2).run(CASES, "equals_whole", op="ring", lengths=[19], oracle="transformers", **capped)


@pytest.mark.parametrize("op", ["ring", "ulysses"])
def test_who_sees_nothing_gives_nothing(op):
    shared_ranks(2).run(CASES, "blind_queries_give_zeros", op=op)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1}, {"n_kv_heads": 2, "dtype": "bfloat16"}], ids=str)
def test_bytes_sent_are_those_derived(ranks, order, options):
    ranks.run(CASES, "sends_what_is_planned", order=order, length=32, steps=ranks.n - 1, **options)


@pytest.mark.parametrize(
    ("window", "order", "steps"),
    [
        (1, "contiguous", 0),
        (1, "zigzag", 0),
        (9, "contiguous", 1),  # spans of 8: the first token of a span sees all of the one before
        (10, "contiguous", 2),
        (18, "contiguous", 3),
        (2, "zigzag", 2),  # spans of 4, whose neighbours are on either side of the ring
        (6, "zigzag", 3),
    ],
)
def test_windows_send_fewer_blocks(window, order, steps):
    shared_ranks(4).run(CASES, "sends_what_is_planned", order=order, length=32, steps=steps, window=window)


@pytest.mark.parametrize("order", ORDERS)
def test_exchanged_heads_are_sent_once(ranks, order):
    ranks.run(CASES, "exchange_sends_each_token_once", order=order, length=32, n_kv_heads=4)


@pytest.mark.parametrize("op", ["ring", "ulysses"])
@pytest.mark.parametrize("order", ORDERS)
def test_half_precision_does_not_suffer(ranks, order, op):
    ranks.run(CASES, "half_precision_is_as_near_as_on_one_rank", op=op, order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_ring_keeps_is_of_its_own_tokens(ranks, order):
    ranks.run(CASES, "keeps_its_own_tokens_alone", order=order)


@pytest.mark.parametrize(
    ("heads", "tensor", "ranks", "words"),
    [
        (2, 1, 4, ["4 ranks", "n_kv_heads is 2", "1, 2 would do"]),
        (6, 1, 4, ["4 ranks", "n_kv_heads is 6", "1, 2, 3, 6 would do"]),
        (4, 2, 4, ["4 ranks", "n_kv_heads is 4", "each of 2 tensor ranks has 2", "1, 2 would do"]),
    ],
)
def test_heads_that_ranks_do_not_divide(heads, tensor, ranks, words):
    op = find("ulysses", "attention_op")(place(heads))
    with pytest.raises(ValueError, match="must divide") as caught:
        op.check_ranks(ranks, tensor=tensor)
    assert all(word in str(caught.value) for word in words)


def test_heads_that_ranks_divide_and_rings_of_any_number():
    for ranks, tensor in [(1, 1), (6, 1), (3, 2)]:
        find("ulysses", "attention_op")(place(6)).check_ranks(ranks, tensor=tensor)
    find("ring", "attention_op")(place(6)).check_ranks(5)


@pytest.mark.parametrize("op", ["ring", "ulysses"])
def test_under_autocast(op):
    shared_ranks(2).run(CASES, "autocast_decides_what_is_sent", op=op)


class Unsure(RoPE):
    """An encoding that does not claim that rows may be shared out."""

    capabilities = Capabilities()


class UnsureSinusoids(SinusoidalPosition):
    """One that acts on embeddings."""

    capabilities = Capabilities()


@pytest.mark.parametrize(
    ("attention", "embedding", "words"),
    [(Unsure, None, r"Unsure \(layers 0, 1\)"), (None, UnsureSinusoids, r"UnsureSinusoids \(model.position\)")],
)
def test_positions_that_do_not_claim_it_are_refused_by_name(attention, embedding, words):
    block = partial(PreNorm, mixer=partial(Attention, n_heads=2, position=attention), feed_forward=None)
    backbone = partial(Decoder, depth=2, pattern=["layer"], blocks={"layer": block}, position=embedding)
    model = LanguageModel(d_model=8, vocab_size=3, max_length=16, tied_embedding=True, backbone=backbone)
    with pytest.raises(CapabilityError, match=words):
        refuse_rows(model, 2, order="zigzag", op="ring", tensor=1, length=16)
