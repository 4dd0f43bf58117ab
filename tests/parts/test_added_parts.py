"""Runs in models that have more parts than they, or have them elsewhere."""

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.parts.added_parts import AddedParts
from torch import nn


class Named(nn.Module):
    """Parameters of two numbers by path."""

    def __init__(self, **values):
        super().__init__()
        for path, value in values.items():
            owner = self
            *modules, last = path.split("__")
            for name in modules:
                if not hasattr(owner, name):
                    owner.add_module(name, nn.Module())
                owner = getattr(owner, name)
            owner.register_parameter(last, nn.Parameter(torch.full((2,), value)))


def moved(source, model, **places):
    drawn = AddedParts(drawn=["head.readout.*"], moved=places)
    return {name: value[0].item() for name, value in drawn.from_run(source, model, 0).items()}


def test_a_module_that_stands_elsewhere_takes_its_weights_along():
    source = Named(body__weight=1.0, head__weight=2.0, head__deep__weight=3.0)
    model = Named(body__weight=0.0, head__inner__weight=0.0, head__inner__deep__weight=0.0, head__readout__weight=9.0)
    found = moved(source, model, head="head.inner")
    wanted = {"body.weight": 1, "head.inner.weight": 2, "head.inner.deep.weight": 3, "head.readout.weight": 9}
    assert found == wanted


def test_modules_that_change_places_and_one_inside_another():
    source = Named(one__weight=1.0, two__weight=2.0, two__in__weight=3.0)
    model = Named(two__weight=0.0, one__weight=0.0, out__weight=0.0, head__readout__weight=9.0)
    found = moved(source, model, one="two", two="one", **{"two.in": "out"})
    assert found == {"two.weight": 1, "one.weight": 2, "out.weight": 3, "head.readout.weight": 9}


def test_what_is_no_module_of_the_run_is_named():
    both = Named(head__weight=1.0, head__readout__weight=2.0)
    with pytest.raises(UserError, match="moved: 'hea' is no module of the run that has weights"):
        moved(both, both, hea="x")
    with pytest.raises(UserError, match=r"head\.inner\.weight"):
        moved(both, both, head="head.inner")
