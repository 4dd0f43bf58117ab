"""Planted faults in what is carried from call to call."""

from __future__ import annotations

import pytest
import torch
from bakeoff.interfaces import Capabilities

from .stand_ins import Decay, Recall, broken


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


class LosesStartsAtBorders(Decay):
    """Looks for starts only inside a call."""

    def step(self, h, x, sequence, t):
        return super().step(h, x, sequence, t) if t else h / 2 + x


class StepsOverPadding(Decay):
    """Single tokens take a shorter path that does not ask whether they are real."""

    def step(self, h, x, sequence, t):
        if sequence.length > 1 or sequence.real is None:
            return super().step(h, x, sequence, t)
        before = h if sequence.starts is None else torch.where(sequence.starts[:, t, None], 0.0, h)
        return before / 2 + x


class AddsInPlace(Decay):
    def kept(self, h, x, state):
        return (state[0].copy_(h) if not h.requires_grad else state[0].data.copy_(h.detach()) * 0 + h,)


class Lean(Decay):
    def empty_state(self, batch, max_length, dtype=torch.float32, device=None):
        return (torch.zeros(batch, self.width, dtype=dtype, device=device),)


class Grows(Recall):
    capabilities = Capabilities(state=True, constant_state=True)


class GrowsUnderGradients(Decay):
    def kept(self, h, x, state):
        return (h, *state) if torch.is_grad_enabled() else (h,)


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
        (LosesStartsAtBorders, "documents", "documents of 1 + 1 tokens: in calls of 1 + 1, output 1 differs by"),
        (
            StepsOverPadding,
            "padding",
            "to T=2, then a padding token and tokens one by one: new token 1 differs by",
        ),
        (AddsInPlace, "state", "gradients on: T=3, then 2 more: forward wrote into the state that it was given"),
        (WrongRows, "state", "gradients on: T=1, then rows [1, 0] of 3 selected: the next output of row 0 differs by"),
        (RowsLast, "state", "gradients on: empty_state of 3 rows holds a tensor of shape (16, 3); rows come first"),
        (SharesItsBranches, "state", "gradients on: T=1, then rows [1, 0] of 3 selected: the next output of row 0"),
        (Lean, "state", "accumulates (the first and the last of 48 tokens both move it), but is bfloat16, not float32"),
        (Grows, "state", "claims `constant_state`, but takes 131072 bytes for 1024 tokens and 524288 for 4096"),
        (GrowsUnderGradients, "state", "T=1 and 3 more, as two training windows: the state takes 512 bytes, and 256"),
        (DeclaresTooLittle, "state", "no_grad, B=2, T=1: the state takes 256 bytes, empty_state for 8 tokens 16"),
        (ReturnsStateUnasked, "call", "evaluation, B=2, T=1: forward returns a state, but none was given"),
        (DropsState, "call", "evaluation, B=2, T=1: a state was given, but forward returns none"),
    ],
)
def test_wrong_states(component, law, message):
    laws = broken(component, law)
    assert message in laws.get(law, ""), laws
