"""The state of an optimizer by name: the same whatever groups it has, and torch's own by index."""

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.parallel.pieces import Piece, cut, entire
from bakeoff.train.optimizer_state import by_index, by_name, empty_state, named, refuse_cut, restore, state_pieces
from bakeoff.train.optimizers import build_optimizer
from torch import nn

OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9)),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.1, amsgrad=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.1),
    "asgd": lambda groups: torch.optim.ASGD(groups, lr=0.1),
    "rprop": lambda groups: torch.optim.Rprop(groups, lr=0.1),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.1),
}


class Net(nn.Module):
    """Matrices and vectors in turn, one of them tied, and one scalar."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3, bias=False))
        self.model.tied, self.model.scale = self.model[0].weight, nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.model(x).square().sum() * self.model.scale


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.tensor([[1.0, 2.0, 3.0]])).backward()
    optimizer.step()


def trained(make, seed=0):
    torch.manual_seed(seed)
    net = Net()
    optimizer = build_optimizer(make, net)
    for _ in range(3):
        step(net, optimizer)
    return net, optimizer


def equal(one, other):
    """Two nests of plain values and tensors."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_names_and_indices_say_the_same(make):
    net, optimizer = trained(make)
    tensors, plain = by_name(optimizer, net)
    assert equal(by_index(tensors, plain), optimizer.state_dict())
    again = named(optimizer.state_dict(), net)
    assert equal(again[0], tensors)
    assert equal(again[1], plain)


def test_names_are_of_key_and_parameter():
    net, optimizer = trained(OPTIMIZERS["adamw"])
    tensors, plain = by_name(optimizer, net)
    listed = ["model.tied", "model.2.weight"], ["model.scale", "model.0.bias", "model.1.weight", "model.1.bias"]
    assert [group["params"] for group in plain["groups"]] == [*listed]
    expected = {
        f"optimizer.{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in [*listed[0], *listed[1]]
    }
    assert tensors.keys() == expected
    weight = net.model[0].weight
    assert tensors["optimizer.exp_avg.model.tied"] is optimizer.state[weight]["exp_avg"]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_of_other_groups_goes_on_the_same(make):
    net, optimizer = trained(make)
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    tensors, plain = by_name(optimizer, net)
    other = Net()
    other.load_state_dict(net.state_dict())
    groups = [{"params": [p], "initial_lr": 0.1} for p in reversed(list(other.parameters()))]
    for group in groups:
        group["lr"] = 0.3  # the saved one is what counts
    alone = make(groups)
    restore(alone, other, {name: value.clone() for name, value in tensors.items()}, plain)
    again = by_name(alone, other)
    assert equal(again[0], tensors)
    assert equal(again[1], plain)
    step(net, optimizer)
    step(other, alone)
    for name, value in net.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


def test_state_is_held_as_its_parameter_is():
    net, optimizer = trained(OPTIMIZERS["adamw"])
    tensors, _ = by_name(optimizer, net)
    part = Net()
    part.model[2].weight = nn.Parameter(torch.zeros(1, 4))  # the last row of three
    pieces = {name: entire(parameter) for name, parameter in part.named_parameters()}
    boxes = cut((3, 4), 0, [(2, 3)])
    pieces["model.2.weight"] = Piece(torch.Size((3, 4)), boxes, part.model[2].weight.detach())
    mine = build_optimizer(OPTIMIZERS["adamw"], part)
    made = empty_state({"model.2.weight": net.model[2].weight, **tensors}, mine, part, pieces)
    assert made.keys() == tensors.keys()
    assert made["optimizer.exp_avg.model.2.weight"].shape == (1, 4)
    assert made["optimizer.step.model.2.weight"].shape == made["optimizer.step.model.scale"].shape == ()
    held = state_pieces(made, pieces)
    assert held["optimizer.exp_avg.model.2.weight"].boxes == boxes
    assert held["optimizer.exp_avg.model.2.weight"].whole == (3, 4)
    assert held["optimizer.exp_avg.model.0.bias"].whole == (4,)
    assert held["optimizer.step.model.2.weight"].whole == ()
    assert {name: piece.whole for name, piece in held.items()} == {name: one.shape for name, one in tensors.items()}


def test_optimizers_that_see_more_than_one_element_are_refused_where_parameters_are_cut():
    parameters = [nn.Parameter(torch.zeros(2, 2))]
    for kind in (torch.optim.Adafactor, torch.optim.Muon, torch.optim.LBFGS):
        refuse_cut(kind(parameters), [])
        with pytest.raises(CapabilityError, match=rf"{kind.__name__} .* model\.a and 1 more are cut"):
            refuse_cut(kind(parameters), ["model.a", "model.b"])
    for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop):
        refuse_cut(kind(parameters), ["model.a"])

    class Own(torch.optim.SGD):
        pass

    with pytest.raises(CapabilityError, match=r"Own .* model\.a is cut"):
        refuse_cut(Own(parameters), ["model.a"])
    Own.elementwise = True
    refuse_cut(Own(parameters), ["model.a"])
