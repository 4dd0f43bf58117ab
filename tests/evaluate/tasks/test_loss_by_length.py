"""The same targets at every length, against sums made token by token."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate.lengthening import lengthened
from bakeoff.evaluate.tasks.loss_by_length import LossByLength, spans_of
from bakeoff.evaluate.tasks.loss_by_position import LossByPosition

MIXER = "model.blocks.layer.mixer"


def figures(measured, *lengths):
    return LossByLength(lengths=lengths).measure(measured, lambda told: None).figures


@pytest.fixture
def short(untrained):
    """Rows of 64 in training."""

    def make(position=None, **changes):
        mixer = {"use": "attention", "n_heads": 2, "position": position or {"use": "rope"}}
        sizes = {"data.length": 64, "data.batch_tokens": 256, "validation.tokens": 2048}
        return untrained(mixer, **{**sizes, **changes})

    return make


def by_hand(measured, length, spans):
    """Nats and targets of spans of the split in rows of `length`, a document of a row at a time."""
    store = measured.data.store("validation")
    nats = count = 0.0
    for start in [start for span in spans for start in range(span, span + 256, length)]:
        row = torch.tensor(store.tokens[start : start + length + 1].astype(int))
        ends = [0, *(int(end) - start for end in store.ends if start < end < start + length + 1), length + 1]
        for first, last in pairwise(ends):
            document = row[first:last]
            if len(document) < 2:
                continue
            with torch.no_grad():
                logits = measured.model.eval().logits(document[None, :-1])[0][0]
            nats += torch.nn.functional.cross_entropy(logits.double(), document[1:], reduction="sum").item()
            count += len(document) - 1
    return nats, count


def test_figures_are_sums_over_the_documents_of_each_row(short):
    measured = short()
    found = figures(measured, 64, "2x", 256)
    bytes_of_targets = found["tokens"] * found["nats_per_token_64"] / found["bits_per_byte_64"] / math.log(2)
    for name, length in (("64", 64), ("2x", 128), ("256", 256)):
        nats, count = by_hand(measured, length, spans_of(measured, {"256": 256}).starts)
        assert found["tokens"] == count
        assert found[f"nats_per_token_{name}"] == pytest.approx(nats / count, rel=1e-6)
        assert found[f"bits_per_byte_{name}"] == pytest.approx(nats / math.log(2) / bytes_of_targets, rel=1e-6)
    assert list(found) == [
        *(f"{kind}_{name}" for kind in ("bits_per_byte", "nats_per_token") for name in ("64", "2x", "256")),
        "tokens",
    ]


def test_what_sees_one_token_costs_the_same_at_every_length(short):
    found = figures(short(**{f"{MIXER}.window": 1}), "1x", "2x", "8x")
    assert found["nats_per_token_2x"] == pytest.approx(found["nats_per_token_1x"], abs=1e-6)
    assert found["nats_per_token_8x"] == pytest.approx(found["nats_per_token_1x"], abs=1e-6)


def test_it_says_of_a_length_what_loss_by_position_says(short):
    measured = short()
    nats, targets = LossByPosition(multiples=[4]).losses(measured, 4)
    found = figures(measured, "4x")
    assert found["tokens"] == targets.sum()
    assert found["nats_per_token_4x"] == pytest.approx(float(nats.sum() / targets.sum()), rel=1e-7)


def test_spans_are_spread_over_the_split_and_as_many_as_validation_takes(short):
    measured = short()
    spans = spans_of(measured, {"1x": 64, "8x": 512})
    assert len(spans.starts) == 4
    assert not any(start % 512 for start in spans.starts)
    assert spans.starts[-1] > len(measured.data.store("validation").tokens) / 2


def test_learned_positions_end_where_they_were_trained_to(short, untrained):
    changes = {"model.position": {"use": "learned_position"}, f"{MIXER}.position": None}
    measured = short(**changes)
    assert figures(measured, 32, "1x")["nats_per_token_32"] > 0
    told = r"LearnedPosition has weights for each of the 64 places .* rows of 512 .*\(64, 16\).*\(512, 16\)"
    with pytest.raises(CapabilityError, match=told):
        figures(measured, "1x", "8x")
    longer = short(**changes, **{"model.max_length": 128})
    assert figures(longer, "1x", "2x")["nats_per_token_2x"] > 0


def test_a_base_that_hangs_on_the_longest_row_is_that_of_the_length(short):
    dynamic = short({"use": "dynamic_ntk_rope", "factor": 1.0, "original_length": 64})
    table = lengthened(dynamic, 256).backbone.blocks[0].mixer.position.table
    assert table.base == pytest.approx(10000 * 4 ** (8 / 6))
    assert dynamic.model.backbone.blocks[0].mixer.position.table.base == 10000
    static = short({"use": "ntk_rope", "alpha": 4.0})
    static.model.load_state_dict(dynamic.model.state_dict())
    assert figures(dynamic, "4x")["nats_per_token_4x"] == pytest.approx(figures(static, "4x")["nats_per_token_4x"])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((48, 128), r"48 is 48 tokens, which does not divide the longest, 128, .* nearest: 32"),
        ((1 << 20,), r"a row of 1048576 tokens does not fit the validation split, which holds (\d+); the longest"),
        (("x2",), "lengths has 'x2'; a length is a number of tokens such as 512, or 4x"),
        ((0,), "lengths has '0'"),
        (("1.5x",), "lengths has '1.5x'"),
        ((), "lengths is empty"),
    ],
)
def test_lengths_that_cannot_be_are_refused(short, lengths, message):
    with pytest.raises((UserError, ValueError), match=message):
        figures(short(), *lengths)
