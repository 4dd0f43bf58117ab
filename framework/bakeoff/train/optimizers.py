"""Which parameters decay, and the optimizer over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from bakeoff.errors import UserError
from bakeoff.interfaces.init import roles
from bakeoff.interfaces.schedule import Schedule
from bakeoff.train.master_weights import with_masters

#: Roles that weight decay leaves alone. An embedding is one: its rows are seldom touched, and would shrink in between.
UNDECAYED = frozenset({"vector", "embedding"})
NONE: Mapping[str, nn.Parameter] = MappingProxyType({})


def parameter_groups(module: nn.Module, own: Mapping[str, nn.Parameter] = NONE) -> list[dict[str, Any]]:
    """All trainable parameters in two groups, each once, in the module's order.

    The first takes the optimizer's own weight decay: matrices. The second, `weight_decay` 0, holds what has fewer than
    two dimensions (gains, biases, decay rates), what a part calls "vector" whatever its shape, and embeddings, so also
    the matrix of a head that is tied to one. A tied parameter stands once, under its first name. Those in `own` stand
    for the module's of the same name.
    """
    kinds = roles(module)
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    decayed = {name for name, parameter in named.items() if kinds[name] not in UNDECAYED and parameter.ndim >= 2}
    groups = (
        {"params": [own.get(name, p) for name, p in named.items() if name in decayed]},
        {"params": [own.get(name, p) for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    )
    return [group for group in groups if group["params"]]


def build_optimizer(
    make: Callable[[Iterable[Any]], Optimizer], module: nn.Module, own: Mapping[str, nn.Parameter] = NONE
) -> Optimizer:
    """The recipe's optimizer over `parameter_groups`; each group keeps its base rate as `initial_lr`.

    Parameters of fewer bits than float32 are stepped in float32: see `MasterWeights`.
    Raises `UserError` if nothing is trainable, or if the optimizer takes no groups.
    """
    groups = parameter_groups(module, own)
    if not groups:
        raise UserError("the model has no trainable parameter")
    try:
        optimizer = with_masters(make)(groups)
    except ValueError as error:
        raise UserError(f"optimizer: {error}") from error
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def check_schedule(schedule: Schedule, total: int) -> None:
    """Ask a schedule for its first and last factor, so that what does not fit the run's length is said at the start."""
    for step in (0, total - 1):
        schedule.factor(step, total)


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Give every group its base rate times `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
