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


class Mixture(nn.Module):
    """Two layers, each of three experts with matrices (4, 2), twice, and (2, 4), and biases of the first two."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Module() for _ in range(2))
        draw = torch.Generator().manual_seed(0)
        for layer in self.layers:
            for name, shape in {"gate": (4, 2), "up": (4, 2), "down": (2, 4)}.items():
                part = nn.Module()
                part.weight = nn.Parameter(torch.randn(3, *shape, generator=draw))
                if name != "down":
                    part.bias = nn.Parameter(torch.randn(3, shape[0], generator=draw))
                layer.add_module(name, part)


def apart(**changed):
    """One matrix for each expert, as most files hold them."""
    lines = {name: line(f"h.*.experts.#.{name}_proj", f"layers.*.{name}") for name in ("gate", "up", "down")}
    return NameMap(weights={**lines, **changed})


def stacked():
    """One tensor for all experts, (in, out), in which gate and up take turns."""
    both = ["layers.*.gate", "layers.*.up"]
    options = {"stacked": True, "transposed": True}
    weights = {
        "both": Weights(theirs="h.*.both", ours=[f"{name}.weight" for name in both], groups=4, **options),
        "bias": Weights(theirs="h.*.both_bias", ours=[f"{name}.bias" for name in both], groups=4, **options),
        "down": Weights(theirs="h.*.down", ours="layers.*.down.weight", **options),
    }
    return NameMap(weights=weights)


def test_experts_stand_apart_in_theirs_and_together_in_ours():
    model = Mixture()
    theirs = apart().to_theirs(model)
    assert len(theirs) == 2 * 3 * (3 + 2)
    assert torch.equal(theirs["h.1.experts.2.up_proj.weight"], model.layers[1].up.weight[2])
    assert torch.equal(theirs["h.0.experts.0.gate_proj.bias"], model.layers[0].gate.bias[0])


def test_experts_of_one_tensor_have_the_layout_of_each():
    model = Mixture()
    theirs = stacked().to_theirs(model)
    gate, up = model.layers[1].gate, model.layers[1].up
    assert {name: tuple(tensor.shape) for name, tensor in theirs.items() if name.startswith("h.1")} == {
        "h.1.both": (3, 2, 8),
        "h.1.both_bias": (3, 8),
        "h.1.down": (3, 4, 2),
    }
    assert torch.equal(theirs["h.1.both"][..., ::2], gate.weight.mT)
    assert torch.equal(theirs["h.1.both"][..., 1::2], up.weight.mT)
    assert torch.equal(theirs["h.1.both_bias"][:, 1::2], up.bias)
    assert torch.equal(theirs["h.1.down"], model.layers[1].down.weight.mT)


@pytest.mark.parametrize("table", [apart, stacked])
def test_experts_come_back_exactly(table):
    model = Mixture()
    back = table().to_ours(table().to_theirs(model), model)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_several_of_ours_may_stand_in_each_expert():
    both = Weights(theirs="h.*.experts.#.gate_up", ours=["layers.*.gate", "layers.*.up"])
    model = Mixture()
    table = NameMap(weights={"both": both, "down": apart().weights["down"]})
    theirs = table.to_theirs(model)
    rows = [model.layers[0].gate.weight[1], model.layers[0].up.weight[1]]
    assert torch.equal(theirs["h.0.experts.1.gate_up.weight"], torch.cat(rows))
    assert torch.equal(table.to_ours(theirs, model)["layers.0.up.weight"], model.layers[0].up.weight)


def test_a_missing_expert_and_one_too_many_are_named():
    model = Mixture()
    theirs = apart().to_theirs(model)
    fewer = {name: tensor for name, tensor in theirs.items() if name != "h.1.experts.2.down_proj.weight"}
    with pytest.raises(UserError, match=r"^1 weights of theirs are not there: h\.1\.experts\.2\.down_proj\.weight$"):
        apart().to_ours(fewer, model)
    with pytest.raises(UserError, match=r"^1 weights .*: h\.0\.experts\.3\.up_proj\.weight$"):
        apart().to_ours({**theirs, "h.0.experts.3.up_proj.weight": torch.ones(4, 2)}, model)


def test_an_expert_of_another_shape_is_named_with_both():
    model = Mixture()
    theirs = apart().to_theirs(model) | {"h.0.experts.1.up_proj.weight": torch.ones(2, 4)}
    with pytest.raises(UserError, match=r"h\.0\.experts\.1\.up_proj\.weight is \(2, 4\); ours: .* \(3, 4, 2\)"):
        apart().to_ours(theirs, model)
    theirs = stacked().to_theirs(model)
    with pytest.raises(UserError, match=r"h\.0\.down is \(2, 4, 2\); ours: .* \(3, 2, 4\)"):
        stacked().to_ours({**theirs, "h.0.down": theirs["h.0.down"][:2]}, model)


@pytest.mark.parametrize(
    "wrong",
    [
        Weights(theirs="h.*.#.#.up", ours="layers.*.up"),
        Weights(theirs="h.*.up", ours="layers.*.#.up"),
        Weights(theirs="h.*.#.up", ours="layers.*.up", stacked=True),
    ],
)
def test_a_number_of_an_expert_stands_once_and_in_theirs(wrong):
    with pytest.raises(UserError, match="`#` stands once, in theirs only"):
        apart(up=wrong)
