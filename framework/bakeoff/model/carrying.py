"""States that go on from one window of a lane to its next: truncated backpropagation through time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bakeoff.interfaces.objective import Objective
from bakeoff.interfaces.state import map_state, tensors

Batch = Mapping[str, Tensor | None]


def begin(model: Any, rows: int) -> Any:
    """The state of `rows` lanes that have seen nothing."""
    with torch.enable_grad():  # the layout that nothing is written into
        return model.backbone.carry(model.empty_state(rows))


def before(model: Any, state: Any, batch: Batch) -> Any:
    """The state before a batch: that of the lanes' last windows (None: there was none), empty where a lane begins."""
    tokens, fresh = batch["tokens"], batch.get("fresh")
    assert tokens is not None
    if state is None:
        return begin(model, len(tokens))
    if fresh is None:
        return state
    empty = tensors(begin(model, len(tokens)))

    def chosen(held: Tensor) -> Tensor:
        return torch.where(fresh.view(-1, *[1] * (held.ndim - 1)), next(empty), held)

    return map_state(chosen, state)


def odd_values(state: Any) -> Tensor:
    """How many values of a state are no number, or infinite; negative infinity, the logarithm of nothing, is none."""
    return torch.stack([(tensor.isnan() | (tensor == torch.inf)).sum() for tensor in tensors(state)]).sum().float()


class Carried:
    """The states of one process's lanes, a nest for each micro-batch of a step.

    Those that a step begins with stay until it is done, so that a step that is broken off can be made again.

    Attributes
    ----------
    states : before the present step, by the micro-batch's number. after : those of its micro-batches that are done.
    """

    def __init__(self, model: Any):
        self.model = model
        self.states: dict[int, Any] = {}
        self.after: dict[int, Any] = {}

    def run(self, objective: Objective, batch: Batch, number: int) -> tuple[Any, Any]:
        """Terms and statistics of micro-batch `number`, whose state goes on; no gradient enters the windows before."""
        state = before(self.model, self.states.get(number), batch)
        terms, statistics, state = objective(self.model, batch, state)
        self.after[number] = self.model.backbone.carry(state)
        return terms, statistics

    def commit(self) -> None:
        """End the step."""
        self.states, self.after = self.after, {}
