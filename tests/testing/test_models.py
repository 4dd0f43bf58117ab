"""Laws on the layers of a model: leaks are found in the layer, or the wiring, that has them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from bakeoff.interfaces import Result
from bakeoff.model import LanguageModel
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.testing import LawFailure, causality_of, check_model

from .stand_ins import Decay, Mean


class FutureInTraining(Mean):
    """Leaks the next token, in training only."""

    def seen(self, x):
        return x + x.roll(-1, 1) if self.training else x


class ForgetsStarts(Decay):
    """Keeps its state from document to document."""

    def step(self, h, x, sequence, t):
        return h / 2 + x


class FutureBetweenLayers(Decoder):
    """Adds the last token's hidden state to all."""

    def forward(self, sequence, state=None):
        result = super().forward(sequence, state)
        return Result(result.y + result.y[:, -1:], result.state)


def language_model(*mixers, backbone=Decoder, meta=False):
    """A model whose layers have these mixers, one each."""
    blocks = {
        f"layer_{i}": partial(PreNorm, mixer=mixer, feed_forward=partial(MLP, width=32), dropout=0.1)
        for i, mixer in enumerate(mixers)
    }
    made = partial(backbone, depth=2 * len(mixers), pattern=list(blocks), blocks=blocks)
    with torch.device("meta" if meta else "cpu"):
        return LanguageModel(d_model=16, vocab_size=20, max_length=64, backbone=made)


attention = partial(Attention, n_heads=2)


@pytest.mark.parametrize("meta", [True, False])
def test_a_model_without_fault_keeps_the_laws(meta):
    model = language_model(attention, Decay, meta=meta)
    if not meta:
        model.initialise(0)
    report = check_model(model)
    assert report.ok, str(report)
    assert [finding.arguments["layers"] for finding in report.findings if finding.law == "split"] == [[0, 2], [1, 3]]


def test_the_layer_and_the_part_that_leak_are_named():
    report = check_model(language_model(attention, FutureInTraining, meta=True))
    failures = report.failures
    assert failures[0].arguments == {"layers": [1, 3]}
    assert failures[0].reason.startswith("mixer (FutureInTraining): training: T=2, token 1 changed: output 0 moved by")
    assert failures[1].reason.startswith("the backbone as a whole, training: T=5")


def test_laws_that_are_asked_for_alone():
    report = check_model(language_model(ForgetsStarts, meta=True), laws=("documents",))
    assert [finding.law for finding in report.failures] == ["documents"]
    assert report.failures[0].reason.startswith("mixer (ForgetsStarts): evaluation: documents of 1 + 1 tokens")
    assert check_model(language_model(ForgetsStarts, meta=True), laws=(1, 2)).ok


def test_layers_that_were_checked_are_not_checked_again():
    known = {}
    first = check_model(language_model(attention, meta=True), known=known)
    held = dict(known)
    again = check_model(language_model(attention, meta=True), known=known)
    assert known == held
    assert [str(f) for f in first.findings] == [str(f) for f in again.findings]


def test_a_leak_between_layers():
    report = check_model(language_model(attention, backbone=FutureBetweenLayers, meta=True), laws=(1,))
    (failure,) = report.failures
    assert failure.reason.startswith("the backbone as a whole, evaluation: T=5")
    with pytest.raises(LawFailure, match="the model breaks the law of causality: evaluation: T=5, token 1 changed"):
        causality_of(language_model(attention, backbone=FutureBetweenLayers).initialise(0))


def test_quick_causality_passes_names_the_culprit_and_leaves_the_model_as_it_was():
    model = language_model(attention, Decay).initialise(0).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    causality_of(model)
    assert model.training
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with pytest.raises(LawFailure, match=r"causality: blocks\.1\.mixer \(FutureInTraining\): training: T=5, token 1"):
        causality_of(language_model(attention, FutureInTraining).initialise(0))
