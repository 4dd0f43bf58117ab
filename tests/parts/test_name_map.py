"""The map of names for stacks of several kinds, and for weights that theirs holds again."""

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.parts.name_map import NameMap, Weights
from torch import nn


class Stack(nn.Module):
    """A first layer with a query, a second with a decay, both with an output; a block beside them."""

    def __init__(self):
        super().__init__()
        first = nn.ModuleDict({"query": nn.Linear(2, 2), "output": nn.Linear(2, 2)})
        self.layers = nn.ModuleList([first, nn.ModuleDict({"decay": nn.Linear(2, 2), "output": nn.Linear(2, 2)})])
        self.block = nn.Linear(2, 2)


def line(theirs, ours, where=None):
    return Weights(theirs=theirs, ours=ours, where=where)


def table():
    weights = {
        "query": line("h.*.attn.q", "layers.*.query"),
        "decay": line("h.*.ssm.a", "layers.*.decay"),
        "output": line("h.*.attn.out", "layers.*.output", where="layers.*.query"),
        "ssm_output": line("h.*.ssm.out", "layers.*.output", where="layers.*.decay.weight"),
        "block": line("h.0.shared", "block"),
    }
    return NameMap(weights=weights, again=[["h.0.shared", "h.3.shared", "h.5.shared"]])


def test_a_line_speaks_only_of_the_layers_that_have_what_it_names():
    theirs = table().to_theirs(Stack())
    outputs = {name.removesuffix(".weight") for name in theirs if name.endswith("out.weight")}
    assert outputs == {"h.0.attn.out", "h.1.ssm.out"}


def test_without_such_a_line_a_weight_stands_in_two():
    with pytest.raises(UserError, match=r"2 weights of ours stand in more than one line: .*layers\.1\.output"):
        NameMap(weights={**table().weights, "output": line("h.*.out", "layers.*.output")}).to_theirs(Stack())


def test_what_theirs_holds_again_comes_and_goes_under_every_name():
    model = Stack()
    theirs = table().to_theirs(model)
    assert {f"h.{i}.shared.{kind}" for i in (0, 3, 5) for kind in ("weight", "bias")} < theirs.keys()
    assert theirs["h.5.shared.bias"].data_ptr() == theirs["h.0.shared.bias"].data_ptr()
    only_last = {name: tensor for name, tensor in theirs.items() if not name.startswith(("h.0.shared", "h.3.shared"))}
    assert torch.equal(table().to_ours(only_last, model)["block.weight"], model.block.weight)


def test_copies_that_differ_are_named():
    theirs = table().to_theirs(Stack())
    with pytest.raises(UserError, match=r"h\.3\.shared\.bias and h\.0\.shared\.bias should hold the same, but differ"):
        table().to_ours({**theirs, "h.3.shared.bias": torch.ones(2)}, Stack())
