"""Recurrent mixers where ranks share out the tokens of rows: which can, and which are refused by name."""

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.model import LanguageModel
from bakeoff.parallel.context import refuse_rows
from bakeoff.testing.build import resolved

FEED_FORWARD = {"use": "mlp", "width": 16}


def model(**mixers):
    """One layer of each mixer."""
    blocks = {
        name: {"use": "pre_norm", "mixer": {"use": use, **arguments}, "feed_forward": FEED_FORWARD}
        for name, (use, arguments) in mixers.items()
    }
    decoder = {"use": "decoder", "depth": len(blocks), "pattern": list(blocks), "blocks": blocks}
    with torch.device("meta"):
        return LanguageModel(d_model=16, vocab_size=11, max_length=32, backbone=resolved(decoder))


def refuse(model):
    refuse_rows(model, 2, order="zigzag", op="ring", tensor=1, length=32)


@pytest.mark.parametrize(("use", "arguments"), [("lstm", {}), ("multiplicative_lstm", {}), ("slstm", {"n_heads": 2})])
def test_what_reads_its_last_state_through_a_nonlinearity_is_refused_by_name(use, arguments):
    mixed = model(first=("min_gru", {}), second=(use, arguments))
    with pytest.raises(CapabilityError, match=rf"context_parallel`: {use} \(layers 1\)"):
        refuse(mixed)


def test_linear_recurrences_are_not_refused():
    refuse(model(first=("min_gru", {}), second=("mlstm", {"n_heads": 2})))
