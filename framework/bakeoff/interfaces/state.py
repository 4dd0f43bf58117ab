"""States are nests (tuples, lists, dicts) of tensors, batch first: what can be done with any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def map_state(apply: Callable[[Tensor], Tensor], state: Any) -> Any:
    """The same nest with `apply` on every tensor."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return apply(state)
    if isinstance(state, dict):
        return {key: map_state(apply, value) for key, value in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(map_state(apply, value) for value in state))
    if isinstance(state, (tuple, list)):
        return type(state)(map_state(apply, value) for value in state)
    return state.map(apply)


def tensors(state: Any) -> Iterator[Tensor]:
    """Every tensor of the nest."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_state(note, state)
    yield from found


def select(state: Any, rows: Tensor) -> Any:
    """The state of the given rows, (rows,) long: drops, reorders or repeats rows; the result shares no memory."""
    return map_state(lambda tensor: tensor.index_select(0, rows), state)


def fork(state: Any) -> Any:
    """A copy that can go another way."""
    return map_state(Tensor.clone, state)


def nbytes(state: Any) -> int:
    """Bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(state))
