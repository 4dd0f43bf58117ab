"""Float32 numbers behind parameters of low precision."""

from functools import partial

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.model import LanguageModel
from bakeoff.model.casting import cast
from bakeoff.model.memory import planned_memory, step_memory
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.recipe.building import factory
from bakeoff.train.master_weights import MASTER, MasterWeights, with_masters
from bakeoff.train.optimizer_state import refuse_cut
from torch import nn

sgd = partial(torch.optim.SGD, lr=1e-4)
adam = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)


def low(*values, dtype=torch.bfloat16):
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def test_small_updates_are_not_lost():
    # bf16 holds 8 bits: between 0.5 and 1 its spacing is 2^-8, 39 updates of 1e-4
    parameter, alone = low(1.0), low(1.0)
    optimizer, plain = with_masters(sgd)([parameter]), sgd([alone])
    for _ in range(1000):
        parameter.grad, alone.grad = torch.ones_like(parameter), torch.ones_like(alone)
        optimizer.step()
        plain.step()
    assert alone.item() == 1.0  # every update was rounded away
    assert optimizer.state[parameter][MASTER].item() == pytest.approx(1.0 - 1000 * 1e-4, abs=1e-4)
    assert parameter.item() == 0.8984375  # 230 / 256, the nearest to 0.9


def test_moments_are_those_of_float32():
    start, gradients = torch.randn(5).bfloat16(), [torch.randn(5).bfloat16() for _ in range(20)]
    parameter, wide = nn.Parameter(start.clone()), nn.Parameter(start.float())
    ours, theirs = with_masters(adam)([parameter]), adam([wide])
    for gradient in gradients:
        parameter.grad, wide.grad = gradient.clone(), gradient.float()
        ours.step()
        theirs.step()
    state = ours.state[parameter]
    assert torch.equal(state[MASTER], wide)
    assert torch.equal(parameter, wide.bfloat16())
    for name in ("exp_avg", "exp_avg_sq"):
        assert state[name].dtype == torch.float32
        assert torch.equal(state[name], theirs.state[wide][name])


def test_a_closure_comes_before_the_step():
    parameter = low(2.0)

    def closure():
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert with_masters(partial(torch.optim.SGD, lr=0.25))([parameter]).step(closure).item() == 4.0
    assert parameter.item() == 1.0


def test_what_is_float32_is_stepped_itself():
    wide, parameter = low(1.0, dtype=torch.float32), low(1.0)
    optimizer = with_masters(sgd)([{"params": [parameter]}, {"params": [wide], "lr": 1.0}])
    wide.grad = torch.ones(1)
    optimizer.step()
    assert wide.item() == 0.0
    assert MASTER not in optimizer.state[wide]
    assert isinstance(with_masters(sgd)([wide]), torch.optim.SGD)


def test_rates_are_set_as_on_any_optimizer():
    parameter = low(1.0)
    optimizer = with_masters(sgd)([parameter])
    optimizer.param_groups[0]["lr"] = 0.5
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert parameter.item() == 0.5


def test_it_continues_exactly():
    def train(optimizer, parameter, steps):
        for step in steps:
            parameter.grad = torch.full_like(parameter, 1.0 + step)
            optimizer.step()

    whole, first, second = low(1.0, -3.0), low(1.0, -3.0), low(1.0, -3.0)
    optimizers = [with_masters(adam)([parameter]) for parameter in (whole, first, second)]
    train(optimizers[0], whole, range(8))
    train(optimizers[1], first, range(5))
    optimizers[1].param_groups[0]["lr"] = 1e-2
    with torch.no_grad():
        second.copy_(first)
    optimizers[2].load_state_dict(optimizers[1].state_dict())
    train(optimizers[2], second, range(5, 8))
    one, other = optimizers[0].state[whole], optimizers[2].state[second]
    assert one.keys() == other.keys()
    assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)
    assert torch.equal(whole, second)


def test_a_state_that_is_set_is_what_it_continues_from():
    # as a checkpoint of pieces does it
    parameter, wide = low(1.0), low(4.0, dtype=torch.float32)
    optimizer, plain = with_masters(adam)([parameter]), adam([wide])
    for one, each in ((wide, plain), (parameter, optimizer)):
        one.grad = torch.ones_like(one)
        each.step()
    state = {name: value.clone() for name, value in plain.state[wide].items()}
    optimizer.state.clear()
    optimizer.state[parameter] = {**state, MASTER: wide.detach().clone()}
    for one, each in ((wide, plain), (parameter, optimizer)):
        one.grad = torch.ones_like(one)
        each.step()
    assert torch.equal(optimizer.state[parameter][MASTER], wide)
    assert torch.equal(optimizer.state[parameter]["exp_avg"], plain.state[wide]["exp_avg"])


def test_what_is_cut_goes_by_the_optimizer_within():
    refuse_cut(with_masters(adam)([low(1.0)]), ["weight"])
    with pytest.raises(CapabilityError, match=r"Muon.* does not update each element by itself"):
        refuse_cut(with_masters(partial(torch.optim.Muon, lr=1e-3))([low([1.0, 2.0])]), ["weight"])


def test_a_plan_counts_what_a_step_in_lower_precision_holds():
    def build():
        block = {"use": "pre_norm", "mixer": {"use": "mamba2", "state_size": 8, "head_width": 8}}
        blocks = {"layer": factory({**block, "feed_forward": {"use": "mlp"}}, "block")}
        backbone = partial(Decoder, depth=2, pattern=["layer"], blocks=blocks)
        return LanguageModel(d_model=16, vocab_size=32, max_length=16, backbone=backbone)

    options = {"rows": 2, "length": 16}
    planned = planned_memory(build, Causal(), with_masters(adam), dtype=torch.bfloat16, **options)
    model = cast(build().initialise(0), torch.bfloat16)
    batch = {"tokens": torch.zeros(2, 17, dtype=torch.long)}
    assert planned == step_memory(model, Causal(), with_masters(adam), batch)


def test_a_state_without_copies_continues_from_the_parameters():
    parameter, wide = low(3.0), low(1.0, dtype=torch.float32)
    optimizer = with_masters(sgd)([parameter])
    with torch.no_grad():
        parameter.fill_(5.0)
    optimizer.load_state_dict(sgd([wide]).state_dict())
    assert optimizer.state[parameter][MASTER].item() == 5.0


def test_an_optimizer_that_evaluates_the_loss_is_refused():
    with pytest.raises(CapabilityError, match="LBFGS evaluates the loss within its step"):
        MasterWeights(torch.optim.LBFGS, [{"params": [low(1.0)]}])
