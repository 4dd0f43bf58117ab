"""The state of an optimizer by the names of parameters, which does not depend on how they are shared out.

A state tensor is called `optimizer.KEY.PARAMETER`: `optimizer.exp_avg.model.backbone.final_norm.scale`. All that is no
tensor stands in one plain mapping: `groups`, as the optimizer's own, with names for parameters; and `values` by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop

from bakeoff.errors import CapabilityError
from bakeoff.parallel.pieces import Held, Piece, entire, local_of
from bakeoff.train.master_weights import MasterWeights
from bakeoff.train.optimizers import parameter_groups

#: Before the names of an optimizer's tensors.
PREFIX = "optimizer."
Own = Mapping[str, Tensor]
NOTHING: Own = MappingProxyType({})
#: Optimizers that change each element by its own gradients and state alone. Another class says so of itself by an
#: attribute `elementwise` that is true.
ELEMENTWISE = (Adadelta, Adagrad, Adam, Adamax, AdamW, ASGD, NAdam, RAdam, RMSprop, Rprop, SGD)


def by_name(optimizer: Optimizer, module: nn.Module, own: Own = NOTHING) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, and the rest, in the order of `parameter_groups` whatever groups the optimizer has.

    `own`: of parameters that the optimizer has in another form than the module, that one, by name.
    """
    names = _names(module, own)
    grouped = {names[parameter]: group for group in optimizer.param_groups for parameter in group["params"]}
    groups = [{**grouped[listed[0]], "params": listed} for listed in _order(module)]
    state = {names[parameter]: values for parameter, values in optimizer.state.items()}
    return _parted(groups, state)


def named(state: Mapping[str, Any], module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """`by_name` of a `state_dict` of an optimizer over `parameter_groups(module)`."""
    order = _order(module)
    flat = [name for listed in order for name in listed]
    groups = [{**group, "params": listed} for group, listed in zip(state["param_groups"], order, strict=True)]
    return _parted(groups, {flat[index]: values for index, values in state["state"].items()})


def by_index(tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The `state_dict` of an optimizer over `parameter_groups`, from what `by_name` gave."""
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, Any]] = {}
    count = 0
    values = _by_parameter({**tensors, **plain["values"]})
    for group in plain["groups"]:
        places = list(range(count, count + len(group["params"])))
        count += len(places)
        groups.append({**group, "params": places})
        state |= {at: values[name] for at, name in zip(places, group["params"], strict=True) if name in values}
    return {"state": state, "param_groups": groups}


def restore(
    optimizer: Optimizer,
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    plain: Mapping[str, Any],
    own: Own = NOTHING,
) -> None:
    """Give an optimizer these tensors as its state, as they are, and the rest, however it groups its parameters."""
    names = _names(module, own)
    saved = {name: group for group in plain["groups"] for name in group["params"]}
    for group in optimizer.param_groups:
        group |= {key: value for key, value in saved[names[group["params"][0]]].items() if key != "params"}
    parameters = {name: parameter for parameter, name in names.items()}
    optimizer.state.clear()
    for name, values in _by_parameter({**tensors, **plain["values"]}).items():
        optimizer.state[parameters[name]] = values


def empty_state(
    held: Mapping[str, Held],
    optimizer: Optimizer,
    module: nn.Module,
    pieces: Mapping[str, Piece],
    own: Own = NOTHING,
) -> dict[str, Tensor]:
    """Tensors to take over the state that a checkpoint holds: of the parameter's kind and place where they have its
    whole shape, which `pieces` say by its name."""
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    parameters = {name: parameter for parameter, name in _names(module, own).items()}
    made: dict[str, Tensor] = {}
    for name, one in held.items():
        if not name.startswith(PREFIX):
            continue
        key, owner = _split(name)
        parameter = parameters.get(owner)
        if parameter is None:
            made[name] = torch.empty(one.shape, dtype=one.dtype)
        elif key != "step" and one.shape == pieces[owner].whole:
            made[name] = torch.zeros_like(parameter, dtype=one.dtype, requires_grad=False)
        else:
            group = groups[parameter]
            with_it = group.get("fused") or group.get("capturable")
            made[name] = torch.zeros(one.shape, dtype=one.dtype, device=parameter.device if with_it else "cpu")
    return made


def state_pieces(tensors: Mapping[str, Tensor], pieces: Mapping[str, Piece]) -> dict[str, Piece]:
    """What this rank holds of the optimizer's tensors: of those shaped as the parameter, what it holds of that."""
    made = {}
    for name, tensor in tensors.items():
        key, owner = _split(name)
        alike = key != "step" and owner in pieces and local_of(tensor).shape == pieces[owner].local.shape
        made[name] = pieces[owner].alike(tensor) if alike else entire(tensor)
    return made


def refuse_cut(optimizer: Optimizer | type[Optimizer], cut: Iterable[str]) -> None:
    """Raise `CapabilityError` if one of the parameters that are `cut` cannot be updated in parts by this optimizer."""
    inner, names = optimizer.inner if isinstance(optimizer, MasterWeights) else optimizer, list(cut)
    kind = inner if isinstance(inner, type) else type(inner)
    if names and kind not in ELEMENTWISE and not getattr(kind, "elementwise", False):
        known = ", ".join(one.__name__ for one in ELEMENTWISE)
        raise CapabilityError(
            f"optimizer {kind.__module__}.{kind.__qualname__} does not update each element by itself, and {names[0]}"
            f"{f' and {len(names) - 1} more are' if len(names) > 1 else ' is'} cut over ranks (trainer.strategy): it "
            f"would compute something else; use one of {known}, or a strategy that cuts no parameter, such as ddp"
        )


def _order(module: nn.Module) -> list[list[str]]:
    names = _names(module)
    return [[names[parameter] for parameter in group["params"]] for group in parameter_groups(module)]


def _names(module: nn.Module, own: Own = NOTHING) -> dict[Tensor, str]:
    return {own.get(name, parameter): name for name, parameter in module.named_parameters()}


def _parted(
    groups: list[dict[str, Any]], state: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    every = {f"{PREFIX}{key}.{name}": value for name, values in state.items() for key, value in values.items()}
    tensors = {name: value for name, value in every.items() if isinstance(value, Tensor)}
    return tensors, {"groups": groups, "values": {name: every[name] for name in every.keys() - tensors.keys()}}


def _split(name: str) -> tuple[str, str]:
    """Key and parameter of a state's name."""
    key, _, owner = name.removeprefix(PREFIX).partition(".")
    return key, owner


def _by_parameter(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        key, owner = _split(name)
        found.setdefault(owner, {})[key] = value
    return found
