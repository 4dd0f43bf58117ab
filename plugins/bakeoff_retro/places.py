"""Where chunks stand within a call: their own tokens, and those that may see what was found for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from bakeoff.interfaces import Need, Sequence
from bakeoff.interfaces.neighbours import NEIGHBOURS
from torch import Tensor


class Places(NamedTuple):
    """Of B rows of T tokens, C chunks of m tokens that end in the call; S = min(m, T).

    A token may see at most one chunk: the last that was whole at it. Those that go on with what came before the call
    see one that ended there; R = min(m - 1, T) come into question, none where there is no past.
    """

    chunks: Tensor | None
    """(B, C) long, which of the neighbours' chunks these are; None: all, in order."""
    inside: Tensor
    """(B C m,) long, where a chunk's tokens stand among B rows of m - 1 tokens held (if there is a past) and the T."""
    queries: Tensor
    """(B C S,) long, which of the B T tokens come into question to see each chunk."""
    carried: Tensor
    """(B R,) long, which of the B T tokens come into question to see the chunk before the call."""
    distance: Tensor
    """(B R,) long, how many tokens after that chunk's last."""
    slots: Tensor
    """(B T,) long, where the answer to a token stands among those to (B, C S + R) queries."""
    sees: Tensor
    """(B, T, 1) bool, whether a token sees a chunk for which something was found, or one before the call."""
    ended: Tensor
    """(B, 1) bool, whether a chunk ended in the call."""
    latest: Tensor
    """(B,) long, which of the C is the latest that ended."""
    known: Tensor
    """(B, 1) bool, whether it is among the C."""


@dataclass(frozen=True)
class ChunkPlaces(Need):
    """`Places` of chunks of `chunk` tokens, which count from each document's first token."""

    chunk: int

    def derive(self, sequence: Sequence) -> Places:
        """From `sequence.index`, `positions`, `real` and `past`, and the `last` of the neighbours in its memory."""
        row = _Row(sequence if sequence.spans is None else sequence.spans.whole, self.chunk)
        last, found = _given(sequence)
        tokens, sees = row.seeing(last)
        chunks = None
        if sequence.spans is not None:
            own = _own(sequence, tokens.device)
            tokens = own[tokens]
            sees = sees & (tokens >= 0)
            chunks = _wanted(sees.any(2))
            last, found, tokens, sees = (t.gather(1, _like(chunks, t)) for t in (last, found, tokens, sees))
        inside = row.inside(last)
        carried, distance, carries = row.carried()
        sees = sees & found[:, :, None]
        slots, seen = _slots(
            sequence.length, torch.cat([tokens.flatten(1), carried], 1), torch.cat([sees.flatten(1), carries], 1)
        )
        ended, latest, known = row.latest(last)
        flat = _flat(tokens.flatten(1), sequence.length), _flat(carried, sequence.length)
        return Places(chunks, inside, *flat, distance.flatten(), slots, seen[:, :, None], ended, latest, known)


class _Row:
    """The real tokens of a call's rows, by their count from the row's first."""

    def __init__(self, sequence: Sequence, chunk: int):
        B, T = sequence.batch, sequence.length
        self.length, self.chunk, self.past = T, chunk, sequence.past
        index, positions = sequence.index.expand(B, -1), sequence.positions.expand(B, -1)
        self.first = index.new_zeros(B, 1) if self.past is None else self.past.length[:, None]
        place = torch.arange(T, device=index.device).expand(B, T)
        real = torch.ones_like(place, dtype=torch.bool) if sequence.real is None else sequence.real
        self.count = real.sum(1, keepdim=True)
        rank = torch.where(real, index - self.first, T)
        #: (B, T), the place of the real token of each rank
        self.place = place.new_zeros(B, T + 1).scatter_(1, rank, place)[:, :T]
        self.behind = (positions + 1) % chunk
        #: (B, T), the index at which the chunk ended that a token sees; -1 for none
        self.end = torch.where(real & (positions + 1 >= chunk), index - self.behind, -1)

    def seeing(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, S): places of the tokens from the last of each chunk on, and whether they see it."""
        S = min(self.chunk, self.length)
        rank = (last - self.first)[:, :, None] + torch.arange(S, device=last.device)
        there = (rank >= 0) & (rank < self.count[:, :, None]) & (last >= self.first)[:, :, None]
        place = self._at(rank)
        return place, there & (self._of(self.end, place) == last[:, :, None])

    def inside(self, last: Tensor) -> Tensor:
        """(B C m,): where the tokens of each chunk stand among those held and those of the call."""
        held = 0 if self.past is None else self.chunk - 1
        rank = (last - self.first)[:, :, None] + torch.arange(1 - self.chunk, 1, device=last.device)
        place = torch.where(rank < 0, (rank + held).clamp_min(0), self._at(rank) + held)
        return _flat(place.flatten(1), held + self.length)

    def carried(self) -> tuple[Tensor, Tensor, Tensor]:
        """(B, R): places of the first tokens, how far they are behind a chunk, and whether it ended before the call."""
        R = 0 if self.past is None else min(self.chunk - 1, self.length)
        place = self.place[:, :R]
        end = self.end.gather(1, place)
        there = torch.arange(R, device=place.device) < self.count
        return place, self.behind.gather(1, place), there & (end >= 0) & (end < self.first)

    def latest(self, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether a chunk ended in the call, which of the C the latest is, and whether it is among them."""
        latest = self.end.amax(1, keepdim=True) if self.length else self.first - 1
        ended = latest >= self.first
        found = ended & (last == latest)
        which = found.long().argmax(1) if last.shape[1] else latest[:, 0]
        return ended, which, found.any(1, keepdim=True)

    def _at(self, rank: Tensor) -> Tensor:
        return self._of(self.place, rank.clamp(0, max(0, self.length - 1)))

    def _of(self, values: Tensor, place: Tensor) -> Tensor:
        return values.gather(1, place.flatten(1)).view_as(place)


def _given(sequence: Sequence) -> tuple[Tensor, Tensor]:
    """(B, C): where chunks ended, and whether anything was found for them."""
    given = sequence.memory.get(NEIGHBOURS)
    if given is None or not sequence.length:
        nothing = sequence.index.new_zeros(sequence.batch, 0)
        return nothing, nothing.bool()
    return given.last, given.real.flatten(2).any(2)


def _own(sequence: Sequence, device: torch.device) -> Tensor:
    """(T of the whole row,): where its tokens stand on this rank, -1 where they do not."""
    assert sequence.spans is not None
    places = sequence.spans.places(sequence.spans.rank, device)
    own = places.new_full((sequence.spans.length,), -1)
    own[places] = torch.arange(len(places), device=device)
    return own


def _wanted(seen: Tensor) -> Tensor:
    """(B, C) bool -> (B, fewer) long: those that are True in some order, and, where rows have fewer, others."""
    most = max(1, int(seen.sum(1).max())) if seen.numel() else 0
    return (~seen).long().argsort(dim=1, stable=True)[:, :most]


def _like(chunks: Tensor, of: Tensor) -> Tensor:
    return chunks if of.ndim == 2 else chunks[:, :, None].expand(-1, -1, of.shape[2])


def _flat(place: Tensor, length: int) -> Tensor:
    """(B, N) places in rows of `length` -> (B N,) in all of them."""
    rows = torch.arange(len(place), device=place.device)[:, None]
    return (place.clamp_min(0) + rows * length).flatten()


def _slots(length: int, tokens: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Of (B, N) queries and whether each counts: where each of the tokens stands among them, and if it does."""
    B, N = tokens.shape
    at = torch.where(sees, tokens, length)
    slot = tokens.new_zeros(B, length + 1).scatter_(1, at, torch.arange(N, device=at.device).expand(B, N))
    seen = sees.new_zeros(B, length + 1).scatter_(1, at, True)
    return _flat(slot[:, :length], N), seen[:, :length]
