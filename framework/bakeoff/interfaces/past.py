"""What the states of a batch hold: one description beside all of them, kept by the backbone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bakeoff.interfaces.state import last_places

if TYPE_CHECKING:
    from bakeoff.interfaces.sequence import Sequence


class Entries(NamedTuple):
    """Places of a sequence, (B or 1, S) each; `documents` and `real` may be None (one document, all real)."""

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    positions: Tensor
    documents: Tensor | None
    real: Tensor | None


class Past:
    """Which real tokens the states of each row have seen.

    Two layouts. *Slots* (under `no_grad`): growing states are preallocated, and real token number i of a row stands in
    slot i, whatever padding came before it. *Appended* (under gradients): growing states are tuples of blocks in order
    of arrival, padding included, and are never written in place.

    Attributes
    ----------
    length : (B,) long, real tokens seen per row.
    last_position, last_document : (B,) long, of the latest real token; -1 where there is none.
    slots : True for the first layout.
    longest : an upper bound on `length`, as a number: slots in use.
    ragged : False if all rows are known to hold equally many real tokens, without padding.
    """

    __slots__ = (
        "documents",
        "entries",
        "has_documents",
        "last_document",
        "last_position",
        "length",
        "longest",
        "positions",
        "ragged",
        "slots",
    )

    def __init__(
        self,
        batch: int,
        max_length: int,
        device: torch.device | str | None = None,
        *,
        slots: bool | None = None,
    ):
        self.slots = not torch.is_grad_enabled() if slots is None else slots
        self.length = torch.zeros(batch, dtype=torch.long, device=device)
        self.last_position = torch.full_like(self.length, -1)
        self.last_document = torch.full_like(self.length, -1)
        self.longest, self.ragged = 0, False
        capacity = max_length if self.slots else 0
        self.positions = torch.zeros(batch, capacity, dtype=torch.long, device=device)
        self.documents = torch.zeros(batch, capacity, dtype=torch.long, device=device)
        self.entries: Entries | None = None
        self.has_documents: bool | None = None  # None: nothing seen yet

    @property
    def batch(self) -> int:
        return self.length.shape[0]

    @property
    def capacity(self) -> int:
        """Slots allocated; 0 for the appended layout, which has no limit."""
        return self.positions.shape[1]

    def with_new(self, new: Entries) -> Entries:
        """All keys that a growing state holds once the tokens `new` are added."""
        if not self.slots:
            return new if self.entries is None else _join(self.entries, new, self.batch)
        # slots are written by `advance` after the call, so the new tokens are laid over a copy here
        used = self.longest + new.index.shape[1]
        slot = torch.arange(used, device=self.length.device)[None]
        if not self.ragged and new.real is None:
            positions = torch.cat([self.positions[:, : self.longest], new.positions.expand(self.batch, -1)], 1)
            documents = None
            if new.documents is not None:
                documents = torch.cat([self.documents[:, : self.longest], new.documents], 1)
            return Entries(slot, positions, documents, None)
        positions = self._laid(self.positions, new.positions, new, used)
        documents = None if new.documents is None else self._laid(self.documents, new.documents, new, used)
        count = new.index.shape[1] if new.real is None else new.real.sum(1)
        return Entries(slot, positions, documents, slot < (self.length + count)[:, None])

    def advance(self, sequence: Sequence) -> Past:
        """The past after a call on `sequence`; in the slots layout this one's tables are reused."""
        if not sequence.length:
            return self
        new = Entries(sequence.index, sequence.positions, sequence.documents, sequence.real)
        after = object.__new__(Past)
        after.slots, after.entries, after.positions, after.documents = (
            self.slots,
            None,
            self.positions,
            self.documents,
        )
        after.has_documents = new.documents is not None
        if self.has_documents not in (None, after.has_documents):
            raise ValueError("a state was begun with document ids and continued without, or the other way round")
        T = sequence.length
        if self.slots:
            if self.longest + T > self.capacity and self._overflows(new):
                raise ValueError(
                    f"{self.longest} tokens in the state and {T} more are over the {self.capacity} that it was made for"
                )
            self._write(new)
        else:
            after.entries = self.with_new(new)
        if new.real is None:
            after.length = self.length + T
            after.last_position = new.positions[:, -1].expand(self.batch).clone()
            after.last_document = self.last_document if new.documents is None else new.documents[:, -1]
            after.longest, after.ragged = self.longest + T, self.ragged
        else:
            after.length = self.length + new.real.sum(1)
            place = torch.arange(T, device=self.length.device).expand_as(new.real)
            last = torch.where(new.real, place, -1).amax(1)
            some, at = last >= 0, last.clamp_min(0)[:, None]
            position = new.positions.expand(self.batch, -1).gather(1, at)[:, 0]
            after.last_position = torch.where(some, position, self.last_position)
            after.last_document = self.last_document
            if new.documents is not None:
                after.last_document = torch.where(some, new.documents.gather(1, at)[:, 0], self.last_document)
            after.longest, after.ragged = int(after.length.max()) if self.slots else self.longest + T, True
        return after

    def carried(self, places: int) -> Past:
        """The same past as the beginning of a training window: with the last `places` entries, real or not."""
        other = self.map(lambda tensor: tensor)
        # that rows have seen unequally many is not known in numbers: lanes begin anew at different steps
        other.ragged, other.longest = True, max(self.longest, places)
        other.entries = _last(self.entries, places, self.length) if places else None
        return other

    def map(self, apply: Callable[[Tensor], Tensor]) -> Past:
        """The same past with `apply` on every tensor (rows first), as for a nest of states."""
        other = object.__new__(Past)
        other.slots, other.longest, other.ragged, other.entries = self.slots, self.longest, self.ragged, None
        other.has_documents = self.has_documents
        for name in ("length", "last_position", "last_document", "positions", "documents"):
            setattr(other, name, apply(getattr(self, name)))
        if self.slots and self.ragged and other.batch:  # the rows that held most may be gone
            other.longest = int(other.length.max())
        if self.entries is not None:
            rows = [None if t is None else t.expand(self.batch, -1) for t in self.entries]
            other.entries = Entries(*(None if t is None else apply(t) for t in rows))  # type: ignore[arg-type]
        return other

    def replaced(self, rows: Tensor, other: Past) -> Past:
        """The same past but for `rows` (B,) bool, which have seen what those of `other` have; as `state.replaced`."""
        after = object.__new__(Past)
        for name in ("length", "last_position", "last_document", "positions", "documents"):
            mine = getattr(self, name)
            setattr(after, name, torch.where(rows.view(-1, *[1] * (mine.ndim - 1)), getattr(other, name), mine))
        after.slots, after.ragged = self.slots, True
        after.has_documents = other.has_documents if self.has_documents is None else self.has_documents
        after.longest = max(self.longest, other.longest) if self.slots else self.longest + other.longest
        after.entries = None
        if not self.slots:
            held, new = _only(self.entries, ~rows), _only(other.entries, rows)
            after.entries = _join(held, new, self.batch) if held is not None and new is not None else held or new
        return after

    def _overflows(self, new: Entries) -> bool:
        count = new.index.shape[1] if new.real is None else new.real.sum(1)
        return bool((self.length + count).max() > self.capacity)

    def _laid(self, held: Tensor, fresh: Tensor, new: Entries, used: int) -> Tensor:
        laid = torch.zeros(self.batch, used + 1, dtype=held.dtype, device=held.device)
        laid[:, : self.longest] = held[:, : self.longest]
        where = new.index.expand(self.batch, -1)
        where = (
            where if new.real is None else torch.where(new.real, where, used)
        )  # padding lands in a place that is dropped
        return laid.scatter_(1, where, fresh.expand(self.batch, -1))[:, :used]

    def _write(self, new: Entries) -> None:
        rows = slice(self.longest, self.longest + new.index.shape[1])
        if not self.ragged and new.real is None:
            self.positions[:, rows] = new.positions
            if new.documents is not None:
                self.documents[:, rows] = new.documents
            return
        used = min(self.longest + new.index.shape[1], self.capacity)
        wide = self.longest + new.index.shape[1]
        self.positions[:, :used] = self._laid(self.positions, new.positions, new, wide)[:, :used]
        if new.documents is not None:
            self.documents[:, :used] = self._laid(self.documents, new.documents, new, wide)[:, :used]


def _last(held: Entries | None, places: int, length: Tensor) -> Entries:
    """The last `places` of what is held, (B, places) each, with places that are not real before the first."""
    rows = torch.zeros(len(length), 0, dtype=torch.long, device=length.device)
    if held is None:
        held = Entries(rows, rows, rows, rows.bool())
    like = held.positions.expand(len(length), -1)
    documents = torch.zeros_like(like) if held.documents is None else held.documents
    real = torch.ones_like(like, dtype=torch.bool) if held.real is None else held.real
    index = held.index.expand(len(length), -1)
    return Entries(*(last_places(tensor, places) for tensor in (index, like, documents, real)))


def _only(held: Entries | None, rows: Tensor) -> Entries | None:
    """What is held, real in some rows alone."""
    if held is None:
        return None
    real = rows[:, None] if held.real is None else held.real & rows[:, None]
    return held._replace(real=real.expand(-1, held.index.shape[1]))


def _join(old: Entries, new: Entries, batch: int) -> Entries:
    def rows(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a.expand(batch, -1), b.expand(batch, -1)], 1)

    def filled(value: Tensor | None, like: Tensor, fill: int | bool) -> Tensor:
        return (
            torch.full_like(like, fill, dtype=torch.bool if isinstance(fill, bool) else torch.long)
            if value is None
            else value
        )

    documents = real = None
    if old.documents is not None or new.documents is not None:
        documents = rows(filled(old.documents, old.index, 0), filled(new.documents, new.index, 0))
    if old.real is not None or new.real is not None:
        real = rows(filled(old.real, old.index, True), filled(new.real, new.index, True))
    return Entries(rows(old.index, new.index), rows(old.positions, new.positions), documents, real)
