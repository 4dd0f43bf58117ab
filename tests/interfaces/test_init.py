"""Initialisation depends on (seed, qualified name) alone."""

import math

import pytest
import torch
from bakeoff.interfaces import LayerContext, Part, init
from bakeoff.interfaces.init import initialise, roles
from bakeoff.parts.linear import Embedding, Linear
from torch import nn


def context():
    return LayerContext(d_model=8, vocab_size=4, max_length=8)


class Special(Part):
    def __init__(self, context):
        super().__init__(context)
        self.rate = nn.Parameter(torch.empty(4))
        self.product = Linear(8, 8)

    def reset_parameters(self):
        init.fill(self.rate, init.uniform(2.0, 3.0))


class Forgetful(Part):
    def __init__(self, context):
        super().__init__(context)
        self.rate = nn.Parameter(torch.empty(4))


def values(module, seed=0):
    initialise(module, seed=seed, depth=2)
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def test_equal_names_are_equal_whatever_stands_beside_them():
    a = values(nn.ModuleDict({"x": Linear(8, 16)}))
    b = values(nn.ModuleDict({"other": Linear(3, 3), "x": Linear(8, 16)}))
    torch.testing.assert_close(a["x.weight"], b["x.weight"], rtol=0, atol=0)
    assert not torch.equal(a["x.weight"], values(nn.ModuleDict({"x": Linear(8, 16)}), seed=1)["x.weight"])


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    values(Special(context()))
    assert torch.equal(before, torch.get_rng_state())


def test_scheme_by_role():
    module = nn.ModuleDict(
        {
            "hidden": Linear(256, 512, bias=True),
            "output": Linear(256, 512, role="output"),
            "read": Linear(256, 512, role="readout"),
            "table": Embedding(512, 256),
        }
    )
    found = values(module)
    assert found["hidden.weight"].std().item() == pytest.approx(1 / 16, rel=0.02)
    assert found["output.weight"].std().item() == pytest.approx(1 / 16 / 2, rel=0.02)  # depth 2: / sqrt(2 * 2)
    assert found["read.weight"].std().item() == pytest.approx(1 / 16, rel=0.02)
    assert found["table.weight"].std().item() == pytest.approx(1 / 16, rel=0.02)
    assert found["hidden.bias"].abs().max() == 0


def test_special_values_survive_inside_a_model():
    alone = values(Special(context()))["rate"]
    inside = values(nn.ModuleDict({"deep": nn.ModuleDict({"part": Special(context())})}))["deep.part.rate"]
    for rate in (alone, inside):
        assert rate.min() >= 2
        assert rate.max() < 3


def test_what_a_part_forgets_is_named():
    with pytest.raises(ValueError, match=r"part\.rate"):
        initialise(nn.ModuleDict({"part": Forgetful(context())}), seed=0)


class Stack(nn.Module):
    """Linear layers of 8 x 4, stacked: `count` of them, from index `first` on."""

    stacked = True

    def __init__(self, count, first=0):
        super().__init__()
        self.first, self.roles = first, {"weight": "output"}
        self.weight = nn.Parameter(torch.empty(count, 8, 4))
        self.bias = nn.Parameter(torch.empty(count, 8))


def test_stacked_things_are_drawn_one_by_one():
    whole = values(nn.ModuleDict({"x": Stack(512)}))
    assert whole["x.weight"].std().item() == pytest.approx(1 / 2 / 2, rel=0.02)  # fan-in 4, depth 2
    assert whole["x.bias"].abs().max() == 0
    assert len(whole["x.weight"].flatten().unique()) > 16000
    part = values(nn.ModuleDict({"x": Stack(3, first=5)}))
    assert torch.equal(part["x.weight"], whole["x.weight"][5:8])
    assert roles(Stack(2)) == {"weight": "output", "bias": "vector"}


def test_roles_of_all_parameters():
    module = nn.ModuleDict({"e": Embedding(4, 8), "o": Linear(8, 8, bias=True, role="output"), "s": Special(context())})
    assert roles(module) == {
        "e.weight": "embedding",
        "o.weight": "output",
        "o.bias": "vector",
        "s.rate": "vector",
        "s.product.weight": "hidden",
    }


def test_a_tied_parameter_stands_once():
    module = nn.ModuleDict({"e": Embedding(4, 8), "h": Linear(8, 4, role="readout")})
    module["h"].weight = module["e"].weight
    assert roles(module) == {"e.weight": "embedding"}


def test_half_precision_holds_the_same_draw():
    single, half = Linear(8, 8), Linear(8, 8).to(torch.bfloat16)
    a, b = values(single)["weight"], values(half)["weight"]
    torch.testing.assert_close(a.to(torch.bfloat16), b, rtol=0, atol=0)
    assert math.isfinite(b.float().sum().item())
