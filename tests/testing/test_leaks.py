"""Planted leaks of the future, of documents, of padding and of rows: caught, with the smallest input."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bakeoff.interfaces import Capabilities, Result
from torch.nn import functional as F

from .stand_ins import Decay, Mean, broken


class Future(Mean):
    def seen(self, x):
        return x + F.pad(x, (0, 0, 0, 1))[:, 1:]


class FutureInTraining(Future):
    def seen(self, x):
        return super().seen(x) if self.training else x


class FutureByGradient(Mean):
    """A normaliser over all tokens whose value is taken back, but not its gradient."""

    def seen(self, x):
        total = x.square().mean((1, 2), keepdim=True)
        return x + x * (total - total.detach())


class FutureThroughChunks(Mean):
    """Each token is given the mean of its chunk of 16."""

    chunk = 16

    def seen(self, x):
        whole = x.shape[1] // self.chunk * self.chunk
        means = x[:, :whole].unflatten(1, (-1, self.chunk)).mean(2).repeat_interleave(self.chunk, 1)
        return x + F.pad(means, (0, 0, 0, x.shape[1] - whole))


class FutureThroughHiddenChunks(FutureThroughChunks):
    """The same, with a usual length that no attribute of the module tells."""

    chunk = 128


class FutureTokens(Mean):
    """Looks at the ids, not at their vectors."""

    def forward(self, x, sequence, state=None):
        last = sequence.tokens[:, -1:, None].to(x.dtype)
        return Result(super().forward(x, sequence).y + last)


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (Future, "evaluation: T=2, token 1 changed: output 0 moved by"),
        (FutureInTraining, "training: T=2, token 1 changed: output 0 moved by"),
        (FutureByGradient, "evaluation: T=2: the gradient of output 0 with respect to token 1 is"),
        (FutureThroughChunks, "evaluation: T=16, token 1 changed: output 0 moved by"),
        (FutureThroughHiddenChunks, "evaluation: T=131, token 1 changed: output 0 moved by"),
        (FutureTokens, "evaluation: T=2, token 1 changed: output 0 moved by"),
    ],
)
def test_leaks_of_the_future_break_causality(component, message):
    laws = broken(component, "causality")
    assert laws["causality"].startswith(message), laws


class FalseDisclaimer(Mean):
    capabilities = Capabilities(causal=False)


class FalseDisclaimerOfRows(Mean):
    capabilities = Capabilities(row_local=False)


class DisclaimedInTraining(FutureInTraining):
    capabilities = Capabilities(lost_in_training=frozenset({"causal"}))


def test_disclaimers_are_tested_and_true_ones_accepted():
    assert "disclaims `causal`, but no output depends on a later token" in broken(FalseDisclaimer)["causality"]
    assert "disclaims `row_local`, but no row depends on another" in broken(FalseDisclaimerOfRows)["rows"]
    assert not broken(DisclaimedInTraining)


class ForgetsStarts(Decay):
    def step(self, h, x, sequence, t):
        after = h / 2 + x
        return after if sequence.real is None else torch.where(sequence.real[:, t, None], after, h)


class CountsPadding(Decay):
    def step(self, h, x, sequence, t):
        before = h if sequence.starts is None else torch.where(sequence.starts[:, t, None], 0.0, h)
        return before / 2 + x


class PaddingInAux(Decay):
    def forward(self, x, sequence, state=None):
        result = super().forward(x, sequence, state)
        return result._replace(aux={"count": torch.tensor(float(x.shape[0] * x.shape[1]))})


class WantsATokenSomewhere(Decay):
    """Nothing is wrong as long as one token of the batch is real."""

    def forward(self, x, sequence, state=None):
        tokens = x.new_ones(()) if sequence.real is None else sequence.real.any().to(x.dtype)
        result = super().forward(x, sequence, state)
        return result._replace(y=result.y / tokens)


class SeesRows(Mean):
    def seen(self, x):
        return x - x.mean(0)


class SeesRowsInTraining(Mean):
    def seen(self, x):
        return x * (1 + x.abs().amax((0, 2), keepdim=True)) if self.training else x


class SaysThatTokensStandAlone(Mean):
    capabilities = Capabilities(token_local=True)


def test_a_token_that_is_said_to_stand_alone():
    assert "token locality" in broken(SaysThatTokensStandAlone)
    assert "among other tokens" in broken(SaysThatTokensStandAlone)["token locality"]


def test_a_leak_between_documents():
    laws = broken(ForgetsStarts)
    assert laws.keys() == {"documents"}
    assert laws["documents"].startswith("evaluation: documents of 1 + 1 tokens: output 1 differs by")


def test_padding_that_is_seen_or_counted():
    laws = broken(CountsPadding)
    assert laws.keys() == {"padding"}
    assert (
        "evaluation: 1 real token, padded on the left to T=2: the output of real token 0 differs by" in laws["padding"]
    )
    laws = broken(PaddingInAux)
    assert laws.keys() == {"padding"}
    assert laws["padding"].endswith("aux 'count' counts padding")


def test_padding_alone_that_gives_no_number():
    laws = broken(WantsATokenSomewhere)
    assert laws == {"padding": "evaluation, B=2, T=3: all tokens are padding, and an output is not finite"}


def test_rows_that_see_each_other():
    assert broken(SeesRows)["rows"].startswith("evaluation: B=2, T=1, row 1 changed: output 0 of row 0 moved by")
    assert broken(SeesRowsInTraining)["rows"].startswith(
        "training: B=2, T=1, row 1 changed: output 0 of row 0 moved by"
    )


class Bidirectional(Mean):
    capabilities = replace(Mean.capabilities, bidirectional=True)


def test_a_false_claim_of_looking_ahead():
    assert "claims `bidirectional`, but token 1 changed and output 0 did not" in broken(Bidirectional)["causality"]
