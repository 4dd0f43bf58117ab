"""Loss against position: it adds up to the loss that is reported, and is known where the source is."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate import measure
from bakeoff.evaluate.tasks.loss_by_position import LossByPosition, binned
from bakeoff.interfaces import Result
from torch import nn

L, SYMBOLS, IDS, PERIOD = 64, 16, 259, 24


@pytest.mark.parametrize("isolate", [True, False])
def test_the_mean_over_positions_is_the_reported_loss(untrained, isolate):
    measured = untrained(**{"data.length": 128, "data.isolate_documents": isolate, "validation.tokens": 6000})
    nats, targets = LossByPosition().losses(measured)
    reported = measure(measured, ["validation"])
    assert int(targets.sum()) == reported["validation.tokens"]
    mean = float(nats.sum() / targets.sum())
    assert mean == pytest.approx(reported["validation.nats_per_token"], abs=1e-7)
    (found,) = [LossByPosition().measure(measured, lambda told: None).figures["loss"]]
    assert found == pytest.approx(mean, abs=1e-12)


class Reads(nn.Module):
    """What a source of its kind expects next, as logits over the ids."""

    layers = ()

    def __init__(self, expect):
        super().__init__()
        self.embedding, self.expect = torch.zeros(1), expect

    def forward(self, sequence, state=None):
        return Result(self.expect(sequence.tokens), None)


class Head(nn.Module):
    def forward(self, logits, targets, reduce):
        assert reduce == "none"
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


@pytest.fixture
def source(untrained):
    """`source(tokens, expect)`: a validation split of these tokens, read by a model that expects so."""

    def make(tokens, expect):
        measured = untrained(**{"data.length": L, "data.isolate_documents": False})
        measured.data.store("validation").tokens = np.asarray(tokens)
        model = nn.Module()
        model.backbone, model.head = Reads(expect), Head()
        model.context = SimpleNamespace(max_length=10 * L)
        return dataclasses.replace(measured, model=model)

    return make


def test_a_bigram_source_costs_the_same_wherever_a_token_stands(source):
    # each symbol is followed by itself or by the next one, as likely; who knows that pays ln 2
    steps = torch.randint(2, (40 * L,), generator=torch.Generator().manual_seed(0))

    def expect(tokens):
        logits = torch.full((*tokens.shape, IDS), -torch.inf)
        follows = torch.stack([tokens, (tokens + 1) % SYMBOLS], -1)
        return logits.scatter(-1, follows, 0.0)

    measured = source(steps.cumsum(0) % SYMBOLS, expect)
    nats, targets = LossByPosition().losses(measured)
    assert (nats / targets).tolist() == pytest.approx([math.log(2)] * L)
    figures = LossByPosition().measure(measured, lambda told: None).figures
    assert figures["floor"] == pytest.approx(math.log(2), abs=1e-6)
    assert (figures["scale"], figures["fit_error"]) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert figures["early"] == pytest.approx(figures["late"])


def test_a_copied_text_costs_nothing_after_one_period(source):
    text = torch.randint(SYMBOLS, (PERIOD,), generator=torch.Generator().manual_seed(0)).repeat(200)

    def expect(tokens):
        logits = torch.where(torch.arange(IDS) < SYMBOLS, 0.0, -torch.inf).repeat(*tokens.shape, 1)
        logits[:, PERIOD - 1 :] += nn.functional.one_hot(tokens[:, : 1 - PERIOD], IDS) * 100.0
        return logits

    measured = source(text, expect)
    for multiple in (1, 3):
        nats, targets = LossByPosition(multiples=[3]).losses(measured, multiple)
        assert len(nats) == multiple * L
        mean = (nats / targets).tolist()
        assert mean[: PERIOD - 1] == pytest.approx([math.log(SYMBOLS)] * (PERIOD - 1))
        assert mean[PERIOD - 1 :] == pytest.approx([0.0] * (multiple * L - PERIOD + 1), abs=1e-6)
    answer = LossByPosition(multiples=[3]).measure(measured, lambda told: None)
    assert answer.figures["early"] == pytest.approx(math.log(SYMBOLS))
    assert answer.figures["late"] == answer.figures["beyond"] == pytest.approx(0.0, abs=1e-6)
    assert list(answer.data["curves"]) == list(answer.data["means"]) == ["1", "3"]
    assert answer.data["means"]["3"] == pytest.approx(math.log(SYMBOLS) * (PERIOD - 1) / (3 * L))


def test_bins_are_four_for_each_doubling():
    nats, targets = torch.arange(1.0, 17).double(), torch.ones(16).double()
    found = binned(nats, targets)
    # bins begin at 2^(i/4), rounded: 1 2 3 4 5 6 7 8 10 11 13, before the last token
    assert [(each.targets, each.loss) for each in found] == [
        (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7), (2, 8.5), (1, 10), (2, 11.5), (4, 14.5)
    ]  # fmt: skip
    assert sum(each.targets for each in found) == 16
    assert found[7].t == pytest.approx(math.sqrt(8 * 9))
    assert binned(nats[:3], torch.tensor([1.0, 0.0, 1.0]).double())[1].t == 3


def test_documents_begin_anew_where_they_are_kept_apart(untrained):
    apart, joined = (untrained(**{"data.length": 256, "data.isolate_documents": each}) for each in (True, False))
    (_, own), (_, whole) = (LossByPosition().losses(each) for each in (apart, joined))
    assert own[0] > whole[0] == -(-whole.sum() // 256)
    assert own[-1] < whole[-1]


@pytest.mark.parametrize("tokens", [512, 1000])
def test_about_as_many_tokens_are_read_as_are_asked_for(untrained, tokens):
    measured = untrained(**{"data.length": 64, "data.isolate_documents": False})
    for multiple in (1, 4):
        _, targets = LossByPosition(tokens=tokens).losses(measured, multiple)
        assert abs(int(targets.sum()) - tokens) < 64 * multiple


def test_rows_beyond_the_training_length_are_read_and_shown(untrained):
    answer = LossByPosition(multiples=[4], tokens=2048).measure(untrained(**{"data.length": 64}), lambda told: None)
    assert answer.figures["beyond"] > 0
    assert answer.html.count('class="line"') == 3
    for words in ("training length", ">1x</text>", ">4x</text>", "nats per token", "(logarithmic)"):
        assert words in answer.html


def test_slips(untrained):
    with pytest.raises(ValueError, match=r"multiples is \[0\]; it takes whole numbers from 1 on"):
        LossByPosition(multiples=[0])
    with pytest.raises(ValueError, match="tokens is 0; it must be at least 1"):
        LossByPosition(tokens=0)
    task = LossByPosition(multiples=[4000])
    with pytest.raises(UserError, match=r"a row of 256000 tokens .* holds \d+: let multiples be at most \d+"):
        task.measure(untrained(**{"data.length": 64}), lambda told: None)
    learned = untrained({"use": "attention", "n_heads": 2}, **{"model.position": {"use": "learned_position"}})
    with pytest.raises(CapabilityError, match=r"LearnedPosition has weights for each of the 512 .* 1024 tokens"):
        LossByPosition(multiples=[2]).measure(learned, lambda told: None)
    masked = dataclasses.replace(untrained(), objective=SimpleNamespace(tokens_wanted=lambda length: length))
    with pytest.raises(CapabilityError, match=r"each token predicts the next, such as causal; SimpleNamespace"):
        LossByPosition().measure(masked, lambda told: None)
