"""Keys and values of past tokens: growing, or the last `window` of them in a rolling cache.

A state is one of two layouts (see `Past`). *Slots*: `{name: (B, slots, …)}`, preallocated, written in place under
`no_grad`; real token number i of a row stands in slot i, or i mod window. *Appended*, under gradients: `Blocks` of
`{name: (B, T, …)}`, which are joined where they are used, and never written again; a `Roomy` of them is joined as it
stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.interfaces.state import Blocks
from bakeoff.parts.attention.room import Roomy

Values = Mapping[str, Tensor]


class Writes(NamedTuple):
    """`held[rows, slots] = new[rows, tokens]`, index tensors that broadcast; padding is in none of them."""

    rows: Tensor
    tokens: Tensor
    slots: Tensor


@dataclass(frozen=True)
class SlotsOfCall(Need):
    """Where a call's tokens are written: the slots, if they are all tokens' and adjoin, else `Writes`.

    Raises `UserError` if the state was made for fewer.
    """

    window: int | None

    def derive(self, sequence: Sequence) -> slice | Writes | None:
        """None where nothing is preallocated."""
        past, T = sequence.past, sequence.length
        if past is None or not past.slots:
            return None
        if past.longest + T > past.capacity:
            self._refuse_overflow(sequence)
        first = past.longest if self.window is None else past.longest % self.window
        if sequence.real is None and not past.ragged and (self.window is None or first + T <= self.window):
            return slice(first, first + T)
        return self._writes(sequence)

    def _writes(self, sequence: Sequence) -> Writes:
        device, T = sequence.tokens.device, sequence.length
        index = sequence.index.expand(sequence.batch, -1)
        if sequence.real is None:
            kept = T if self.window is None else min(T, self.window)
            rows = torch.arange(sequence.batch, device=device)[:, None]
            tokens = torch.arange(T - kept, T, device=device)[None]
            slots = index[:, T - kept :]
        else:
            keep = sequence.real
            if self.window is not None:
                keep = keep & (index > index[:, -1:] - self.window)
            rows, tokens = keep.nonzero(as_tuple=True)
            slots = index[rows, tokens]
        return Writes(rows, tokens, slots if self.window is None else slots % self.window)

    def _refuse_overflow(self, sequence: Sequence) -> None:
        past, T = sequence.past, sequence.length
        assert past is not None
        count = T if sequence.real is None else sequence.real.sum(1)
        longest = int((past.length + count).max())
        if longest > past.capacity:
            raise UserError(f"a state made for {past.capacity} tokens cannot hold {longest}: give max_length as many")


class Cache:
    """What a mixer keeps of past tokens under given names; `window` None keeps all of them.

    A mixer declares `needs`, makes states with `empty`, and calls `extend` once a call.
    """

    def __init__(self, window: int | None):
        self.window = window
        self._slots = SlotsOfCall(window)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What `extend` reads from the sequence."""
        return (self._slots,)

    def empty(self, shapes: Mapping[str, tuple[int, ...]], batch: int, max_length: int, dtype: Any, device: Any) -> Any:
        """A state with nothing in it; `shapes` are those of one token's values.

        In memory the slots of a head adjoin, which is how attention reads them.
        """
        if torch.is_grad_enabled():
            none = {name: (batch, 0, *shape) for name, shape in shapes.items()}
            return Blocks([{name: torch.zeros(shape, dtype=dtype, device=device) for name, shape in none.items()}])
        slots = max_length if self.window is None else min(self.window, max_length)
        return {
            name: torch.zeros(batch, *heads, slots, width, dtype=dtype, device=device).movedim(-2, 1)
            for name, (*heads, width) in shapes.items()
        }

    def extend(self, state: Any, new: Values, sequence: Sequence) -> tuple[Values, Any, bool]:
        """`(values, state, rolling)`: all that the queries may look at, (B, S, …), with the call's `new` (B, T, …).

        The order of S is that of `held_keys(sequence, window, rolling)`.
        """
        if state is None:
            return new, None, False
        past = sequence.past
        if past is None:
            raise ValueError("a state came without sequence.past, which says what the state holds")
        if isinstance(state, Roomy):
            state = state.extended(new)
            return state[0], state, False
        if not past.slots:
            blocks = Blocks((*_blocks(state, past.longest), new))
            return {name: torch.cat([block[name] for block in blocks], 1) for name in new}, blocks, False
        if isinstance(state, Blocks):
            raise ValueError("a state begun under gradients came with a past begun without; begin both alike")
        held = {name: _own(state[name]) for name in new}
        if self.window is None or sequence.length == 1:
            self._write(held, new, sequence)
            seen = {name: self._used(held[name], past.longest + sequence.length) for name in new}
        else:  # what the call overwrites is still seen by its first queries
            seen = {name: torch.cat([self._used(held[name], past.longest), new[name]], 1) for name in new}
            self._write(held, new, sequence)
        return {name: values.to(new[name].dtype) for name, values in seen.items()}, held, self.window is not None

    def _used(self, held: Tensor, count: int) -> Tensor:
        """The slots that `count` tokens take; padding may ask for more than there are, which nobody sees."""
        used = count if self.window is None else min(count, self.window)
        missing = used - held.shape[1]
        if missing <= 0:
            return held[:, :used]
        return torch.cat([held, held.new_zeros(held.shape[0], missing, *held.shape[2:])], 1)

    def _write(self, held: Values, new: Values, sequence: Sequence) -> None:
        where = sequence[self._slots]
        for name, values in new.items():
            if isinstance(where, slice):
                held[name][:, where] = values
            else:
                held[name][where.rows, where.slots] = values[where.rows, where.tokens].to(held[name].dtype)


def _own(held: Tensor) -> Tensor:
    """The tensor to write into: a copy where gradients may still need the old values."""
    return held.clone() if torch.is_grad_enabled() or held.requires_grad else held


def _blocks(state: Any, longest: int) -> tuple[Values, ...]:
    if isinstance(state, Blocks):
        return state
    if longest == 0:  # preallocated, and nothing in it yet
        return ()
    raise ValueError("a state begun without gradients came with a past begun under them; begin both alike")
