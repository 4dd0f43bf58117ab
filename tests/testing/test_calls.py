"""Planted faults in forward, in numbers, in first values and in cost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from bakeoff.interfaces import Need, Result
from torch import nn

from .stand_ins import Decay, Mean, Recall, broken


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


class WritesIntoSequence(Mean):
    def forward(self, x, sequence, state=None):
        sequence.tokens.zero_()
        return super().forward(x, sequence, state)


class ReadsMemory(Mean):
    """Takes the input to be contiguous."""

    def seen(self, x):
        return x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1))


class ReturnsFloat32(Mean):
    def forward(self, x, sequence, state=None):
        y = super().forward(x, sequence, state).y
        return Result(y.float() if y.dtype == torch.bfloat16 else y)


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


class _Square(torch.autograd.Function):
    """Asks twice for what it saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0] + dy * ctx.saved_tensors[0]


class ReadsTwice(Mean):
    def seen(self, x):
        return _Square.apply(x)


class DrawsElsewhere(Mean):
    """Noise from a generator of its own."""

    def __init__(self, context):
        super().__init__(context)
        self.generator = torch.Generator().manual_seed(0)

    def seen(self, x):
        noise = torch.rand(x.shape, generator=self.generator, dtype=x.dtype) if self.training else 1.0
        return x * noise


@pytest.mark.parametrize(
    ("component", "law", "message"),
    [
        (ReadsTwice, "recompute", "recompute selective: CheckpointError: torch.utils.checkpoint: Unpack is being"),
        (DrawsElsewhere, "recompute", "training, B=2, T=5, recompute selective: the output is another one"),
        (CountsCalls, "call", "training, B=2, T=1: forward changed 'running'"),
        (CachesByFirstUse, "call", "forward set 'table'"),
        (WritesIntoInput, "call", "evaluation, B=2, T=1: forward wrote into its input"),
        (WritesIntoSequence, "call", "evaluation, B=2, T=1: forward wrote into the sequence"),
        (ReadsMemory, "call", "evaluation, B=2, T=5: the same input, not contiguous, moved output 0 by"),
        (ReturnsFloat32, "numbers", "bf16, training, T=1: the output is float32"),
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
    laws = broken(component, law)
    assert message in laws.get(law, ""), laws
