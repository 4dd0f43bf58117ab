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
    """Memory for `places` tokens, and for their gradient while it is being added up; each is taken when first used."""

    def __init__(self, places: int):
        self.places = places
        self._held: Tensor | None = None
        self._gradient: Tensor | None = None
        self._pass: int | None = None

    def write(self, new: Tensor, start: int) -> Tensor:
        """Put `new` (B, T, …) behind the first `start` tokens: all up to the last of it, (B, start + T, …)."""
        if self._held is None:
            self._held = new.new_empty(new.shape[0], self.places, *new.shape[2:])
        held = self._held.data  # tensors given out before keep their version: what they show does not change
        held[:, start : start + new.shape[1]] = new
        joined = held[:, : start + new.shape[1]]
        joined.room = self  # type: ignore[attr-defined]
        return joined

    def gradient(self, like: Tensor) -> Tensor:
        """Of all tokens, (B, places, …), float32 or wider: what has been added to it in this backward pass."""
        current = torch._C._current_graph_task_id()
        if self._gradient is None or self._pass != current:
            wide = torch.promote_types(like.dtype, torch.float32)
            self._gradient = like.new_zeros(like.shape[0], self.places, *like.shape[2:], dtype=wide)
            self._pass = current
        return self._gradient

    def take(self, like: Tensor, start: int) -> Tensor:
        """The gradient of the tokens `like` (B, T, …) from place `start` on, to which nothing is added any more."""
        own = self.gradient(like)[:, start : start + like.shape[1]].to(like.dtype, copy=True)
        if not start:
            self._gradient = None
        return own


def room_of(joined: Tensor) -> Room | None:
    """Where gradients of what a `Roomy` holds can be added up by themselves, in place of being returned."""
    return getattr(joined, "room", None)


class _Append(torch.autograd.Function):
    """`(joined, carrier)`. The carrier has no values: by it a call is differentiated after those that follow it, when
    the gradient of its tokens has been added up in the room, through its own `joined` and those of the others.
    """

    @staticmethod
    def forward(ctx: Any, new: Tensor, carrier: Tensor | None, room: Room, start: int) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.room, ctx.start, ctx.like = room, start, new.new_empty(()).expand(new.shape)
        return room.write(new, start), new.new_zeros(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_joined: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if by_joined is not None:
            ctx.room.gradient(ctx.like)[:, : by_joined.shape[1]] += by_joined
        nothing = ctx.like.new_zeros(()) if ctx.needs_input_grad[1] else None
        return ctx.room.take(ctx.like, ctx.start), nothing, None, None


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
