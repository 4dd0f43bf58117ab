"""Which parameters decay."""

import bakeoff
import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Norm
from bakeoff.train.optimizers import build_optimizer, parameter_groups, set_rates
from torch import nn


def groups_by_name(model):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model)
    assert [group.get("weight_decay") for group in groups] == [None, 0.0]
    return tuple({names[id(parameter)] for parameter in group["params"]} for group in groups)


MIXERS = [{"use": "attention", "n_heads": 2}, {"use": "mamba2", "head_width": 8}, {"use": "lstm"}]


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer["use"])
def test_vectors_and_what_parts_call_so_do_not_decay(tiny, values, mixer):
    values["model"]["blocks"]["layer"]["mixer"] = mixer
    model = bakeoff.recipe(values).build("model", vocab_size=259)
    decayed, spared = groups_by_name(model)
    named = dict(model.named_parameters())
    assert decayed | spared == set(named)
    assert not decayed & spared
    assert spared >= {name for name, parameter in named.items() if parameter.ndim < 2}
    words = ("A_log", "dt_bias", "norm", "bias", "embed")
    assert not [name for name in decayed if any(word in name.split(".")[-1] for word in words)]
    assert [name for name in decayed if name.endswith("weight")]


def test_a_tied_weight_stands_once_and_untied_readouts_decay(tiny):
    tied = tiny().build("model", vocab_size=259)
    decayed, spared = groups_by_name(tied)
    assert "backbone.embed.weight" in spared
    assert not any(name.startswith("head.") for name in decayed | spared)
    untied = tiny(model__tied_embedding=False).build("model", vocab_size=259)
    decayed, spared = groups_by_name(untied)
    assert "head.projection.weight" in decayed
    assert "backbone.embed.weight" in spared


class TwoDimensionalGain(Norm):
    """A norm that a stranger wrote: its gain has two dimensions, and it says so."""

    roles = {"gain": "vector"}  # noqa: RUF012

    def __init__(self, context):
        super().__init__(context)
        self.gain = nn.Parameter(torch.ones(1, context.d_model))

    def forward(self, x):
        return x * self.gain


def test_a_new_norm_class_is_caught():
    norm = TwoDimensionalGain(LayerContext(d_model=4, vocab_size=4, max_length=4))
    decayed, spared = groups_by_name(nn.ModuleDict({"norm": norm, "matrix": nn.Linear(4, 4)}))
    assert spared == {"norm.gain", "matrix.bias"}
    assert decayed == {"matrix.weight"}


def test_decay_and_rates_reach_the_right_group():
    layer = nn.Linear(2, 2)
    optimizer = build_optimizer(lambda groups: torch.optim.AdamW(groups, lr=0.5, weight_decay=0.1), layer)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    set_rates(optimizer, 0.5)
    set_rates(optimizer, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]


def test_nothing_to_train_and_an_optimizer_without_groups_are_refused():
    with pytest.raises(UserError, match="no trainable parameter"):
        build_optimizer(torch.optim.SGD, nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(UserError, match="LBFGS"):
        build_optimizer(torch.optim.LBFGS, nn.Linear(2, 2))
