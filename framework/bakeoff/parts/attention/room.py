"""A state that grows under gradients without being joined: what comes is written behind what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bakeoff.interfaces.state import Blocks


class Roomy(Blocks):
    """`Blocks` of one nest {name: (B, T, …)}, with room behind each tensor for `places` tokens in all.

    Anything but `extended` takes it for what it holds. Of one such state at most one other may be made, apart from
    those that running the same call anew makes.
    """

    places: int = 0
    rooms: Mapping[str, Room]
    carriers: Mapping[str, Tensor | None]

    @classmethod
    def of(cls, blocks: Blocks, places: int) -> Roomy:
        """Room for `places` tokens, where `blocks` holds none."""
        (empty,) = blocks
        roomy = cls((empty,))
        roomy.places, roomy.rooms, roomy.carriers = places, {name: Room(places) for name in empty}, dict.fromkeys(empty)
        return roomy

    def extended(self, new: Mapping[str, Tensor]) -> Roomy:
        """The state after the tokens `new` (B, T, …): `extended(new)[0]` is all of them."""
        (held,) = self
        joined, carriers = {}, {}
        for name, values in new.items():
            start = held[name].shape[1]
            joined[name], carriers[name] = _Append.apply(values, self.carriers[name], self.rooms[name], start)
        after = Roomy((joined,))
        after.places, after.rooms, after.carriers = self.places, self.rooms, carriers
        return after


class Room:
    """Memory for `places` tokens, taken when the first come."""

    def __init__(self, places: int):
        self.places = places
        self._held: Tensor | None = None

    def write(self, new: Tensor, start: int) -> Tensor:
        """Put `new` (B, T, …) behind the first `start` tokens: all up to the last of it, (B, start + T, …)."""
        if self._held is None:
            self._held = new.new_empty(new.shape[0], self.places, *new.shape[2:])
        held = self._held.data  # tensors given out before keep their version: what they show does not change
        held[:, start : start + new.shape[1]] = new
        return held[:, : start + new.shape[1]]


class _Append(torch.autograd.Function):
    """`(joined, carrier)`. The carrier has no values. Its gradient, (B, places, …), is that of all tokens so far:
    each call adds in place what came through its own `joined`, and hands it to the call before.
    """

    @staticmethod
    def forward(ctx: Any, new: Tensor, carrier: Tensor | None, room: Room, start: int) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.start = (new.shape[0], room.places, *new.shape[2:]), start
        ctx.wide = torch.promote_types(new.dtype, torch.float32)
        ctx.end = start + new.shape[1]
        return room.write(new, start), new.new_zeros((), dtype=ctx.wide).expand(ctx.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_joined: Tensor | None, total: Tensor | None) -> tuple[Tensor | None, ...]:
        if by_joined is None and total is None:
            return None, None, None, None
        if total is None:
            assert by_joined is not None
            total = by_joined.new_zeros(ctx.shape, dtype=ctx.wide)
        if by_joined is not None:
            total[:, : ctx.end] += by_joined
        return total[:, ctx.start : ctx.end].clone(), total if ctx.needs_input_grad[1] else None, None, None


def with_room(state: Any, places: int) -> Any:
    """The same nest, in which states that grow and hold nothing yet have room for `places` tokens."""
    if isinstance(state, Blocks):
        return Roomy.of(state, places)
    if isinstance(state, Mapping):
        return {name: with_room(value, places) for name, value in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(with_room(value, places) for value in state))
    if isinstance(state, (tuple, list)):
        return type(state)(with_room(value, places) for value in state)
    return state
