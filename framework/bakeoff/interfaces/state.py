"""States are nests (tuples, lists, dicts) of tensors, batch first: what can be done with any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class Blocks(tuple[Any, ...]):
    """A state that grows, under gradients: nests of (B, T, …) tensors, one a call in order of arrival.

    It begins with one of no tokens.
    """

    __slots__ = ()


def map_state(apply: Callable[[Tensor], Tensor], state: Any) -> Any:
    """The same nest with `apply` on every tensor."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return apply(state)
    if isinstance(state, (dict, tuple, list)):
        return _each(partial(map_state, apply), state)
    return state.map(apply)


def _each(apply: Callable[[Any], Any], nest: Any) -> Any:
    """The same dict, tuple or list with `apply` on what stands directly in it."""
    if isinstance(nest, dict):
        return {key: apply(value) for key, value in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*map(apply, nest))
    return type(nest)(map(apply, nest))


def carried(state: Any, places: int) -> Any:
    """The state as the beginning of a training window: detached, and of one size.

    What grows is one block of the last `places` tokens, with zeros before the first.
    """
    if state is None or isinstance(state, Tensor):
        return None if state is None else state.detach()
    if not isinstance(state, Blocks):
        return _each(partial(carried, places=places), state)
    joined = (torch.cat(parts, 1).detach() for parts in zip(*map(tensors, state), strict=True))
    last = (last_places(tensor, places) for tensor in joined)
    return Blocks((map_state(lambda _: next(last), state[0]),))


def last_places(tensor: Tensor, places: int, fill: float = 0) -> Tensor:
    """The last `places` of a (B, T, …) tensor, with `fill` before it where it has fewer."""
    missing = max(0, places - tensor.shape[1])
    padded = F.pad(tensor, (*[0, 0] * (tensor.ndim - 2), missing, 0), value=fill) if missing else tensor
    return padded[:, padded.shape[1] - places :]


def tensors(state: Any) -> Iterator[Tensor]:
    """Every tensor of the nest."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_state(note, state)
    yield from found


def select(state: Any, rows: Tensor) -> Any:
    """The state of the given rows, (rows,) long: drops, reorders or repeats rows; the result shares no memory.

    What adjoins in memory still does, as those who read a state may count on it.
    """
    return map_state(partial(_selected, rows), state)


def _selected(rows: Tensor, tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return tensor.index_select(0, rows)
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    laid = tensor.permute(order).index_select(order.index(0), rows)
    return laid.permute([order.index(dim) for dim in range(tensor.ndim)])


def replaced(state: Any, rows: Tensor, other: Any) -> Any:
    """The state whose `rows`, (B,) bool, are those of `other`, of as many rows and made for as many tokens.

    What grows under gradients holds both, one after the other: of which a row has which, its past tells.
    """
    if state is None or isinstance(state, Tensor):
        return None if state is None else torch.where(rows.view(-1, *[1] * (state.ndim - 1)), other, state)
    if isinstance(state, Blocks):
        return Blocks((*state, *other))
    if isinstance(state, (dict, tuple, list)):
        others = iter(other.values() if isinstance(other, dict) else other)
        return _each(lambda held: replaced(held, rows, next(others)), state)
    return state.replaced(rows, other)


def fork(state: Any) -> Any:
    """A copy that can go another way."""
    return map_state(Tensor.clone, state)


def nbytes(state: Any) -> int:
    """Bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(state))
