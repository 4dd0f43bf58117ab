"""Parameters of low precision, and the float32 numbers behind them that an optimizer changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bakeoff.errors import CapabilityError

MakeOptimizer = Callable[[Iterable[Any]], Optimizer]

#: In the state of a parameter: its float32 number.
MASTER = "master"


def with_masters(make: MakeOptimizer) -> MakeOptimizer:
    """Optimizers as `make` makes them, in `MasterWeights` where a parameter has fewer bits than float32."""

    def made(parameters: Iterable[Any]) -> Optimizer:
        groups = _groups(parameters)
        low = any(_is_low(parameter) for group in groups for parameter in group["params"])
        return MasterWeights(make, groups) if low else make(groups)

    return made


class MasterWeights(Optimizer):
    """Steps float32 copies of low parameters, and rounds the parameters from them (Micikevicius et al., 2018,
    arXiv:1710.03740): an update that is smaller than the spacing of bf16 adds up and is not lost, and all that the
    optimizer keeps is float32.

    The state of a parameter is that of its copy, and the copy itself under "master", so that checkpoints hold it.

    Parameters
    ----------
    make : the optimizer of the copies, called with groups. groups : of the parameters themselves.

    Raises `CapabilityError` for an optimizer that evaluates the loss itself.
    """

    def __init__(self, make: MakeOptimizer, groups: list[dict[str, Any]]):
        self.masters: dict[Tensor, Tensor] = {p: _master(p) for group in groups for p in group["params"]}
        self.inner = make([{**group, "params": [self.masters[p] for p in group["params"]]} for group in groups])
        super().__init__(groups, self.inner.defaults)
        closure = inspect.signature(type(self.inner).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise CapabilityError(
                f"optimizer {type(self.inner).__name__} evaluates the loss within its step, which parameters of "
                "trainer.precision bf16-true do not allow; use bf16-mixed, or another optimizer"
            )
        self._show()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the copies with the gradients of the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take()
        low = {p: master for p, master in self.masters.items() if master is not p}
        for parameter, master in low.items():
            master.grad = None if parameter.grad is None else parameter.grad.to(master.dtype)
        self.inner.step()
        for parameter, master in low.items():
            master.grad = None
            parameter.copy_(master)
        self._show()
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`; parameters that it knows no copy of are what they are."""
        held = {number: dict(state) for number, state in state_dict["state"].items()}
        copies = {number: state.pop(MASTER, None) for number, state in held.items()}
        self.inner.load_state_dict({**state_dict, "state": {number: state for number, state in held.items() if state}})
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            own.update({name: value for name, value in inner.items() if name != "params"})
        ordered = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(ordered):
            if self.masters[parameter] is not parameter:
                copy = copies.get(number)
                self.masters[parameter].copy_(parameter if copy is None else copy)
        self._show()

    def _take(self) -> None:
        """Let the optimizer of the copies have what stands here, which others may have set."""
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({name: value for name, value in own.items() if name != "params"})
        for parameter, state in self.state.items():
            master = self.masters[parameter]
            if state.get(MASTER, master) is not master:
                master.copy_(state[MASTER])
            self.inner.state[master] = {name: value for name, value in state.items() if name != MASTER}

    def _show(self) -> None:
        for parameter, master in self.masters.items():
            own = {} if master is parameter else {MASTER: master}
            state = {**self.inner.state.get(master, {}), **own}
            if state:
                self.state[parameter] = state


def _groups(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    given = list(parameters)
    groups = [dict(group) for group in given] if given and isinstance(given[0], dict) else [{"params": given}]
    return [{**group, "params": list(group["params"])} for group in groups]


def _is_low(parameter: Tensor) -> bool:
    return parameter.is_floating_point() and parameter.element_size() < 4


def _master(parameter: Tensor) -> Tensor:
    return parameter.detach().to(torch.float32, copy=True) if _is_low(parameter) else parameter
