"""Law 10 finds what goes wrong where ranks share out the tokens of rows."""

import re

import pytest
import torch
from bakeoff.interfaces import Capabilities, Result, SequenceMixer
from bakeoff.parts.linear import Linear
from bakeoff.parts.spans import before_each
from bakeoff.testing import check


class Shift(SequenceMixer):
    """Adds to each token the one before it in the row."""

    capabilities = Capabilities(context_parallel=True)

    def __init__(self, context):
        super().__init__(context)
        self.output = Linear(context.d_model, context.d_model, role="output")

    def forward(self, x, sequence, state=None):
        return Result(self.output(x + self.before(x, sequence)), state, self.sums(x))

    def before(self, x, sequence):
        if sequence.spans is None:
            return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        ends = before_each(x, 1, sequence.spans)
        pieces = [torch.cat([end, own], 1)[:, :-1] for end, own in zip(ends, sequence.spans.split(x), strict=True)]
        return torch.cat(pieces, 1)

    def sums(self, x):
        return {"squares": x.square().sum()}


class Alone(Shift):
    """Knows of no other rank's tokens."""

    def before(self, x, sequence):
        return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


class Cut(Shift):
    """Looks at other ranks' tokens, which learn nothing of it."""

    def before(self, x, sequence):
        return super().before(x.detach(), sequence) if sequence.spans is not None else super().before(x, sequence)


class Mean(Shift):
    """Reports what does not add up."""

    def sums(self, x):
        return {"squares": x.square().mean()}


def test_a_mixer_that_is_told_what_it_does_not_have():
    report = check(Shift, laws=["context"])
    assert [finding.status for finding in report.findings] == ["passed"], report


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (Alone, r"2 ranks: evaluation, contiguous, T 19: the output differs by"),
        (Cut, r"2 ranks: evaluation, contiguous, T 19: the gradient of x differs by"),
        (Mean, r"2 ranks: evaluation, contiguous, T 19: the sum 'squares' differs by"),
    ],
)
def test_the_law_names_what_differs(part, told):
    (finding,) = check(part, laws=["context"]).findings
    assert finding.status == "failed"
    assert re.match(told, finding.reason), finding.reason
