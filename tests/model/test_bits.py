"""Bits per byte against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from bakeoff.interfaces.objective import Objective, TokenLosses
from bakeoff.model.bits import evaluate_bits
from torch import nn


class Given(Objective):
    """Token losses, targets and weights that the batch states."""

    def tokens_wanted(self, length):
        return length

    def forward(self, model, batch):
        raise AssertionError("evaluation asks for token losses only")

    def token_losses(self, model, batch):
        assert not model.training
        return TokenLosses(batch["nats"], batch["tokens"], batch["weights"])


def batch(rows):
    """Rows of (nats, id), padded to one length with weight 0 and an absurd cost."""
    length = max(len(row) for row in rows)
    padded = [[*row, *[(99.0, 0)] * (length - len(row))] for row in rows]
    weights = [[1.0] * len(row) + [0.0] * (length - len(row)) for row in rows]
    nats, ids = torch.tensor(padded).unbind(-1)
    return {"nats": nats, "tokens": ids.long(), "weights": torch.tensor(weights), "documents": None}


def test_tokens_count_alike_whatever_the_batches():
    # four tokens of 1 nat and one of 6: 2.0, and not the mean of means 3.5
    long, short = [(1.0, 1)] * 4, [(6.0, 1)]
    for batches in ([batch([long, short])], [batch([long]), batch([short])]):
        result = evaluate_bits(nn.Linear(1, 1), Given(), batches, None)
        assert result == {"nats_per_token": 2.0, "tokens": 5.0}
        assert math.exp(result["nats_per_token"]) == pytest.approx(7.389, abs=1e-3)


def test_the_better_model_is_the_one_with_fewer_bits_per_byte():
    sizes = np.array([0, 4, 2], dtype=np.int32)
    long_tokens = evaluate_bits(nn.Linear(1, 1), Given(), [batch([[(2.0, 1)] * 3])], sizes)
    short_tokens = evaluate_bits(nn.Linear(1, 1), Given(), [batch([[(1.2, 2)] * 3])], sizes)
    assert long_tokens["bits_per_byte"] == pytest.approx(0.7213, abs=1e-4)
    assert short_tokens["bits_per_byte"] == pytest.approx(0.8656, abs=1e-4)


def test_an_end_of_document_costs_nats_and_stands_for_no_byte():
    result = evaluate_bits(nn.Linear(1, 1), Given(), [batch([[(math.log(2), 1), (math.log(2), 0)]])], np.array([0, 1]))
    assert result["bits_per_byte"] == pytest.approx(2.0)


def test_sums_of_ranks_are_added_before_the_division():
    # ranks with 3 and 2 batches of the constant 1.0: 1.0, not 1.25
    others = torch.tensor([2.0, 2.0, 0.0], dtype=torch.float64)
    mine = [batch([[(1.0, 1)]])] * 3
    result = evaluate_bits(nn.Linear(1, 1), Given(), mine, None, add_up=lambda sums: sums + others)
    assert result == {"nats_per_token": 1.0, "tokens": 5.0}


def test_modes_are_given_back_and_an_empty_validation_is_refused():
    model = nn.Sequential(nn.Dropout(), nn.Linear(1, 1))
    model[1].eval()
    evaluate_bits(model, Given(), [batch([[(1.0, 1)]])], None)
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
    with pytest.raises(ValueError, match="no target"):
        evaluate_bits(model, Given(), [], None)
