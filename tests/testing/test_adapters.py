"""Planted faults in how a part uses its weights, which adapters beside them show."""

from __future__ import annotations

import pytest
import torch
from bakeoff.interfaces import init
from bakeoff.parts.linear import Linear
from bakeoff.testing import check
from torch import nn

from .stand_ins import Mean, broken


class Mixes(Mean):
    """The running mean, and a product with it."""

    def __init__(self, context):
        super().__init__(context)
        self.layer = Linear(context.d_model, context.d_model)

    def seen(self, x):
        return self.layer(x)


class Plain(Mean):
    """By a layer of torch's own, and a matrix that stands in the part itself."""

    def __init__(self, context):
        super().__init__(context)
        self.layer = nn.Linear(context.d_model, context.d_model)
        self.matrix = nn.Parameter(torch.empty(context.d_model, context.d_model))

    def reset_parameters(self):
        init.fill(self.matrix, init.normal(0.5))

    def seen(self, x):
        return self.layer(x) @ self.matrix


class ReadsParameters(Mixes):
    def seen(self, x):
        return nn.functional.linear(x, dict(self.layer.named_parameters())["weight"])


class HalfRead(Mixes):
    """By a call, and by the parameter itself."""

    def seen(self, x):
        return self.layer(x) + nn.functional.linear(x, self.layer._parameters["weight"])


class Squared(Linear):
    """Calls a product what is none."""

    def product(self, x, weight, bias=None):
        return super().product(x, weight, bias).square()

    def forward(self, x):
        return self.product(x, self.weight, self.bias)


class Nonlinear(Mixes):
    def __init__(self, context):
        super().__init__(context)
        self.layer = Squared(context.d_model, context.d_model)


class Overrides(Linear):
    """More than a product, which the class does not claim it is: the sum is formed."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.tanh(), self.bias)


class OfTanh(Mixes):
    def __init__(self, context):
        super().__init__(context)
        self.layer = Overrides(context.d_model, context.d_model)


@pytest.mark.parametrize("part", [Mixes, Plain, OfTanh])
def test_parts_that_call_or_read_keep_the_law(part):
    check(part, laws=["adapters"]).raise_for_failures()


@pytest.mark.parametrize("part", [ReadsParameters, HalfRead, Nonlinear])
def test_what_passes_adapters_by_is_told(part):
    assert "with adapters the output differs by" in broken(part, "adapters")["adapters"]


class Bare(Mean):
    def __init__(self, context):
        super().__init__(context)
        self.output = nn.Identity()


def test_a_part_without_products_has_nothing_to_adapt():
    (finding,) = check(Bare, laws=["adapters"]).findings
    assert finding.status == "not applicable"
