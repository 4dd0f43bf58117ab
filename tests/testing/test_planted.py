"""Faults planted in small correct mixers: each is caught by the law it breaks, with the smallest input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from bakeoff.interfaces import Capabilities, Need, Result
from bakeoff.testing import LawFailure, Report, check
from torch import nn
from torch.nn import functional as F

from .stand_ins import Decay, Mean, Recall


def broken(component: type) -> dict[str, str]:
    """Laws that a component breaks, each with its reason."""
    report = check(component)
    return {finding.law: finding.reason for finding in report.failures}


@pytest.mark.parametrize("component", [Mean, Decay, Recall])
def test_correct_mixers_keep_all_laws(component):
    report = check(component)
    assert report.ok, str(report)
    report.raise_for_failures()


def test_what_is_not_claimed_is_not_tested():
    status = {finding.law: finding.status for finding in check(Mean).findings}
    assert status["causality"] == status["call"] == status["cost"] == "passed"
    assert all(status[law] == "not claimed" for law in ("split", "documents", "padding", "state"))


# --- the future ---------------------------------------------------------------------------------------------------


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

    chunk = 64


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
        (FutureThroughHiddenChunks, "evaluation: T=67, token 1 changed: output 0 moved by"),
        (FutureTokens, "evaluation: T=2, token 1 changed: output 0 moved by"),
    ],
)
def test_leaks_of_the_future_break_causality(component, message):
    laws = broken(component)
    assert laws["causality"].startswith(message), laws


class FalseDisclaimer(Mean):
    capabilities = Capabilities(causal=False)


class FalseDisclaimerOfRows(Mean):
    capabilities = Capabilities(row_local=False)


class DisclaimedInTraining(FutureInTraining):
    capabilities = Capabilities(causal_in_training=False)


def test_disclaimers_are_tested_and_true_ones_accepted():
    assert "disclaims `causal`, but no output depends on a later token" in broken(FalseDisclaimer)["causality"]
    assert "disclaims `row_local`, but no row depends on another" in broken(FalseDisclaimerOfRows)["rows"]
    assert not broken(DisclaimedInTraining)


# --- documents, padding, rows -------------------------------------------------------------------------------------


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


class SeesRows(Mean):
    def seen(self, x):
        return x - x.mean(0)


class SeesRowsInTraining(Mean):
    def seen(self, x):
        return x * (1 + x.abs().amax((0, 2), keepdim=True)) if self.training else x


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


def test_rows_that_see_each_other():
    assert broken(SeesRows)["rows"].startswith("evaluation: B=2, T=1, row 1 changed: output 0 of row 0 moved by")
    assert broken(SeesRowsInTraining)["rows"].startswith(
        "training: B=2, T=1, row 1 changed: output 0 of row 0 moved by"
    )


# --- states -------------------------------------------------------------------------------------------------------


class ForgetsState(Decay):
    def forward(self, x, sequence, state=None):
        empty = None if state is None else (torch.zeros_like(state[0]),)
        return super().forward(x, sequence, empty)


class KeepsOneTooFew(Decay):
    """The state lags one token behind."""

    def kept(self, h, x, state):
        return ((h - x[:, -1]) * 2,)


class WritesOneSlotTooFar(Recall):
    def extended(self, state, x, sequence):
        if not sequence.past.slots:
            return super().extended(state, x, sequence)
        (slots,) = state
        start = min(sequence.past.longest + (sequence.past.longest > 0), slots.shape[1] - x.shape[1])
        slots[:, start : start + x.shape[1]] = x
        return slots[:, : sequence.past.longest + x.shape[1]], state


class DetachesState(Decay):
    def kept(self, h, x, state):
        return (h.detach(),)


class WrongRows(Decay):
    """Keeps its state in the module, where no row can be selected."""

    def forward(self, x, sequence, state=None):
        if state is not None and sequence.past.longest and self.mine is not None:
            state = (self.mine[: len(x)],)
        result = super().forward(x, sequence, state)
        self.mine = None if state is None else result.state[0]
        return result

    mine = None


class RowsLast(Decay):
    def empty_state(self, *args, **kwargs):
        return (super().empty_state(*args, **kwargs)[0].mT.contiguous(),)

    def forward(self, x, sequence, state=None):
        result = super().forward(x, sequence, None if state is None else (state[0].mT,))
        return result if state is None else result._replace(state=(result.state[0].mT,))


class SharesItsBranches(Decay):
    """Writes into the tensors that it was given, and hands out the module's own."""

    def __init__(self, context):
        super().__init__(context)
        self.register_buffer("zero", torch.zeros(8, context.d_model), persistent=False)

    def empty_state(self, batch, max_length, dtype=torch.float32, device=None):
        if device == "meta":
            return super().empty_state(batch, max_length, dtype, device)
        return (self.zero[:batch],)

    def kept(self, h, x, state):
        state[0].data.copy_(h.data)
        return (h + 0 * state[0],)


class Lean(Decay):
    def empty_state(self, batch, max_length, dtype=torch.float32, device=None):
        return (torch.zeros(batch, self.width, dtype=dtype, device=device),)


class Grows(Recall):
    capabilities = Capabilities(state=True, constant_state=True)


class DeclaresTooLittle(Decay):
    def empty_state(self, batch, max_length, dtype=torch.float32, device=None):
        rows = super().empty_state(batch, max_length, dtype, device)
        return tuple(r[:, :1] for r in rows) if device == "meta" else rows


class ReturnsStateUnasked(Decay):
    def forward(self, x, sequence, state=None):
        asked = state if state is not None else self.empty_state(x.shape[0], 0, x.dtype)
        return super().forward(x, sequence, asked)


class DropsState(Decay):
    def kept(self, h, x, state):
        return None


@pytest.mark.parametrize(
    ("component", "law", "message"),
    [
        (ForgetsState, "split", "evaluation, no_grad: T=2 in calls of 1 + 1: output 1 differs by"),
        (KeepsOneTooFew, "split", "evaluation, no_grad: T=2 in calls of 1 + 1: output 1 differs by"),
        (WritesOneSlotTooFar, "split", "evaluation, no_grad: T=3 in calls of 1 + 1 + 1: output 1 differs by"),
        (DetachesState, "split", "training, gradients on: T=2 in calls of 1 + 1: the gradient of x differs by"),
        (WrongRows, "state", "gradients on: T=1, then rows [1, 0] of 3 selected: the next output of row 0 differs by"),
        (RowsLast, "state", "gradients on: empty_state of 3 rows holds a tensor of shape (16, 3); rows come first"),
        (SharesItsBranches, "state", "gradients on: T=1, then rows [1, 0] of 3 selected: the next output of row 0"),
        (Lean, "state", "accumulates (the first and the last of 48 tokens both move it), but is bfloat16, not float32"),
        (Grows, "state", "claims `constant_state`, but takes 131072 bytes for 1024 tokens and 524288 for 4096"),
        (DeclaresTooLittle, "state", "no_grad, B=2, T=1: the state takes 256 bytes, empty_state for 8 tokens 16"),
        (ReturnsStateUnasked, "call", "evaluation, B=2, T=1: forward returns a state, but none was given"),
        (DropsState, "call", "evaluation, B=2, T=1: a state was given, but forward returns none"),
    ],
)
def test_wrong_states(component, law, message):
    laws = broken(component)
    assert message in laws.get(law, ""), laws


# --- forward, numbers, values, cost -------------------------------------------------------------------------------


class CountsCalls(Mean):
    """A running mean that forward updates."""

    def __init__(self, context):
        super().__init__(context)
        self.register_buffer("running", torch.zeros(context.d_model))

    def reset_parameters(self):
        self.running.zero_()

    def seen(self, x):
        if self.training:
            self.running.lerp_(x.detach().mean((0, 1)).to(self.running.dtype), 0.1)
        return x


class CachesByFirstUse(Mean):
    def forward(self, x, sequence, state=None):
        if not hasattr(self, "table"):
            self.table = torch.arange(1, 1000)
        return super().forward(x, sequence, state)


class WritesIntoInput(Mean):
    def seen(self, x):
        with torch.no_grad():
            return x.mul_(2)


class DrawsInEvaluation(Mean):
    def seen(self, x):
        return x + 0 * torch.randn(x.shape)


@dataclass(frozen=True)
class Half(Need):
    def derive(self, sequence):
        return sequence.positions / 2


class ReadsUndeclared(Mean):
    def forward(self, x, sequence, state=None):
        return Result(super().forward(x, sequence).y + sequence[Half()][..., None].to(x.dtype))


class Overflows(Mean):
    def seen(self, x):
        return x * torch.log(torch.exp(x.abs()))


class SlopeAtZero(Mean):
    def seen(self, x):
        return x.abs().sqrt()


class OtherThanNaive(Decay):
    def naive(self, x, sequence, state=None):
        result = self.forward(x, sequence, state)
        return replace_y(result, result.y * torch.where(torch.arange(x.shape[1]) < 4, 1.0, 1.001)[:, None])


def replace_y(result, y):
    return result._replace(y=y)


class Unfilled(Mean):
    def __init__(self, context):
        super().__init__(context)
        self.gain = nn.Parameter(torch.ones(context.d_model))

    def seen(self, x):
        return x * self.gain


class DrawsInConstructor(Mean):
    """A constant buffer that the meta device loses."""

    def __init__(self, context):
        super().__init__(context)
        self.register_buffer("gain", torch.linspace(1, 2, context.d_model))

    def seen(self, x):
        return x * self.gain


class DrawsFromGlobal(Mean):
    def reset_parameters(self):
        with torch.no_grad():
            self.output.weight.normal_()


class TwiceTheCost(Decay):
    def flops(self, queries, keys):
        return 2 * super().flops(queries, keys)


class FullRectangle(Recall):
    def flops(self, queries, keys):
        return 2 * queries * self.width**2 + 4 * self.width * queries * keys


class ForgetsThePast(Recall):
    def flops(self, queries, keys):
        return super().flops(queries, queries)


@pytest.mark.parametrize(
    ("component", "law", "message"),
    [
        (CountsCalls, "call", "training, B=2, T=1: forward changed 'running'"),
        (CachesByFirstUse, "call", "forward set 'table'"),
        (WritesIntoInput, "call", "evaluation, B=2, T=1: forward wrote into its input"),
        (DrawsInEvaluation, "call", "evaluation, B=2, T=5: forward draws from the global random generator"),
        (ReadsUndeclared, "call", "was not prepared: the part that reads it must declare it in `needs()`"),
        (Overflows, "numbers", "float32, training, T=1, inputs of size 1000: an output is not finite"),
        (SlopeAtZero, "numbers", "float32, training, T=1, inputs of size 0: the gradient of x is not finite"),
        (OtherThanNaive, "numbers", "training, T=5, inputs of size 1: output 4 differs by"),
        (Unfilled, "initialisation", "left unfilled by initialisation: gain"),
        (DrawsInConstructor, "initialisation", "made on the meta device, backbone.blocks.0.mixer.gain differs"),
        (
            DrawsFromGlobal,
            "initialisation",
            "output.weight differs between two initialisations with the same seed",
        ),
        (TwiceTheCost, "cost", "flops(queries=7, keys=7) is 7,168, but the products of a run are 3,584"),
        (FullRectangle, "cost", "flops(queries=7, keys=7) is 6,720, but the products of a run are 5,376"),
        (ForgetsThePast, "cost", "flops(queries=1, keys=13) is 576, but the products of a run are 1,344"),
    ],
)
def test_other_faults(component, law, message):
    laws = broken(component)
    assert message in laws.get(law, ""), laws


def test_the_report_reads_and_raises():
    report = check(Future)
    assert isinstance(report, Report)
    assert not report
    assert str(report).startswith("mixer Future breaks the law of causality")
    with pytest.raises(LawFailure, match=r"mixer Future breaks the law of causality.*\n.*\n.*FAIL  1 causality"):
        report.raise_for_failures()


def test_one_law_by_name_or_number():
    assert [finding.law for finding in check(Mean, laws=[1, "numbers"]).findings] == ["causality", "numbers"]
    with pytest.raises(ValueError, match="no law is called 'speed'"):
        check(Mean, laws=["speed"])


class Bidirectional(Mean):
    capabilities = replace(Mean.capabilities, bidirectional=True)


def test_a_false_claim_of_looking_ahead():
    assert "claims `bidirectional`, but token 1 changed and output 0 did not" in broken(Bidirectional)["causality"]


def test_errors_of_a_part_are_findings():
    class Raises(Mean):
        def seen(self, x: Any) -> Any:
            if x.shape[1] > 4:
                raise RuntimeError("too long")
            return x

    assert broken(Raises)["causality"] == "RuntimeError: too long"
