"""What inside a batch is where: tokens, positions, documents, padding, and what states hold of the past."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bakeoff.interfaces.past import Entries, Past
from bakeoff.interfaces.spans import Spans

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

VISIBILITIES = ("causal", "bidirectional", "prefix")


class Need(ABC):
    """A hashable description of something derived from the sequence alone; derived once per forward.

    Subclasses are frozen dataclasses: equal needs of different layers are derived once.
    """

    @abstractmethod
    def derive(self, sequence: Sequence) -> Any:
        """The tensor, or nest of tensors, that parts read back with `sequence[need]`."""


class Sequence:
    """An opaque view of a batch of `B` rows and `T` tokens; read-only inside blocks.

    Attributes
    ----------
    tokens : (B, T) long.
    index : (B or 1, T) long, the running count of real tokens in the row, from 0; windows and caches go by it.
    positions : (B or 1, T) long, what positional encodings see: from 0 in each document.
    documents : (B, T) long or None, equal for tokens of one document; None: each row is one document.
    real : (B, T) bool or None, False for padding; None: all are real.
    starts : (B, T) bool or None, True at the first real token of each document; None: only where the past is empty.
    segments : (B, T) long or None, running count of `starts`; 0 continues the past's document.
    visibility : "causal", "bidirectional" or "prefix".
    prefix : (B, T) long or None, length of the visible prefix of each token's document.
    memory : named values: from outside the sequence, each a `(value, Sequence)` pair; and what parts show to later
        ones, as they show it. The decoder shows "embedding", the (B, T, D) that its first block reads.
    past : what the states hold before this call, or None where no state is used.
    spans : which tokens of a whole sequence these are, where ranks share it out; None: these are all.
    """

    __slots__ = (
        "_derived", "documents", "index", "memory", "past", "positions", "prefix", "real", "segments", "spans",
        "starts", "tokens", "visibility",
    )  # fmt: skip

    def __init__(
        self,
        tokens: Tensor,
        *,
        documents: Tensor | None = None,
        real: Tensor | None = None,
        positions: Tensor | None = None,
        visibility: str = "causal",
        prefix: Tensor | None = None,
        memory: Mapping[str, Any] | None = None,
        past: Past | None = None,
    ):
        if visibility not in VISIBILITIES:
            raise ValueError(f"visibility '{visibility}' is none of {', '.join(VISIBILITIES)}")
        if (visibility == "prefix") != (prefix is not None):
            raise ValueError(
                "visibility 'prefix' takes the length of each token's prefix, and no other visibility does"
            )
        self.tokens, self.documents, self.real, self.past = tokens, documents, real, past
        self.visibility, self.prefix, self.memory = visibility, prefix, dict(memory or {})
        self.spans: Spans | None = None
        self._derived: dict[Need, Any] = {}
        self.index = self._count()
        self.starts = self._starts()
        self.segments = None if self.starts is None else self.starts.long().cumsum(1)
        self.positions = self._positions() if positions is None else positions

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def prepare(self, needs: Iterable[Need]) -> Sequence:
        """Derive what parts need, once, before the first block; returns itself."""
        for need in needs:
            if need not in self._derived:
                self._derived[need] = need.derive(self)
        return self

    def as_seen(self) -> Sequence:
        """The same, with the memory as it stands: what later blocks show is not in it."""
        other = Sequence.__new__(Sequence)
        for name in Sequence.__slots__:
            setattr(other, name, getattr(self, name))
        other.memory = dict(self.memory)
        return other

    def shared_out(self, group: ProcessGroup, order: str) -> Sequence:
        """What this rank has of it, see `Spans`; the memory from outside stands whole on each rank.

        Raises `ValueError` where there are fewer tokens than spans.
        """
        spans = Spans(self, group, order)
        own = self._with(spans.take, self.segments)
        own.spans = spans
        return own

    def part(self, start: int, stop: int) -> Sequence:
        """The tokens from `start` to `stop` as a call that goes on after those before; it holds no `past`."""
        segments = self.segments
        if segments is not None and start:
            segments = segments - segments[:, start - 1 : start]
        return self._with(lambda x: x if x.shape[1] == 1 != self.length else x[:, start:stop], segments)

    def _with(self, take: Callable[[Tensor], Tensor], segments: Tensor | None) -> Sequence:
        """Of every tensor what `take` gives."""
        other = self.as_seen()
        for name in ("tokens", "index", "positions", "documents", "real", "starts", "prefix"):
            value = getattr(self, name)
            setattr(other, name, None if value is None else take(value))
        other.segments = None if segments is None else take(segments)
        other.past, other.spans, other._derived = None, None, {}
        return other

    def __getitem__(self, need: Need) -> Any:
        try:
            return self._derived[need]
        except KeyError:
            raise KeyError(f"{need} was not prepared: the part that reads it must declare it in `needs()`") from None

    def entries(self) -> Entries:
        """Index, positions, documents and real of all keys that queries may look at, (B or 1, S).

        They are those that a growing state holds after this call; where ranks share out a sequence, those of the whole.
        """
        if self.spans is not None:
            return self.spans.whole.entries()
        new = Entries(self.index, self.positions, self.documents, self.real)
        return new if self.past is None else self.past.with_new(new)

    def _count(self) -> Tensor:
        past, device = self.past, self.tokens.device
        if self.real is None and (past is None or not past.ragged):  # all rows hold equally many
            held = 0 if past is None else past.longest
            return torch.arange(held, held + self.length, device=device)[None]
        if self.real is None:
            index = torch.arange(self.length, device=device)[None]
        else:
            index = (self.real.long().cumsum(1) - 1).clamp_min(0)
        return index if past is None else index + past.length[:, None]

    def _starts(self) -> Tensor | None:
        if self.documents is None:
            return None
        real = torch.ones_like(self.documents, dtype=torch.bool) if self.real is None else self.real
        # the document of the latest real token before each place; -1 before the first
        place = torch.arange(self.length, device=self.tokens.device).expand_as(self.documents)
        latest = torch.where(real, place, -1).cummax(1).values
        before = torch.cat([latest.new_full((self.batch, 1), -1), latest[:, :-1]], 1)
        if self.past is None:
            first = self.documents.new_full((self.batch, 1), -1)
        else:
            first = self.past.last_document[:, None]
        previous = torch.where(before < 0, first, self.documents.gather(1, before.clamp_min(0)))
        return real & (self.documents != previous)

    def _positions(self) -> Tensor:
        if self.past is None and self.starts is None:
            return self.index
        if self.past is None:
            origin = self.index.new_zeros(self.batch, 1)
        else:  # index at which the document that the past ends with began
            origin = (self.past.length - self.past.last_position - 1)[:, None]
        if self.starts is None:
            return self.index - origin
        began = torch.where(self.starts, self.index.expand_as(self.starts), -1).cummax(1).values
        return self.index - torch.where(began < 0, origin, began)
