"""Which keys stand before the queries of a call, and which of them each query sees; derived once per forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bakeoff.interfaces.past import Entries, Past
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.parts.attention.functional import Visible


@dataclass(frozen=True)
class VisibleKeys(Need):
    """What the queries of a call see of their keys: a `Visible`.

    A query sees real keys of its own document, at most `window` of them, itself included (None: all): those that do
    not come later under causal visibility, those of its document's prefix too under "prefix", those on both sides,
    each at most `window` - 1 away, under "bidirectional". Keys are `held_keys(sequence, window, rolling)`.
    """

    window: int | None
    rolling: bool = False

    def derive(self, sequence: Sequence) -> Visible | None:
        """None where no rolling cache can be, as nobody asks then."""
        if self.rolling and not rolls(sequence):
            return None
        simple = self._without_mask(sequence)
        if simple is not None:
            return simple
        queries = Entries(sequence.index, sequence.positions, sequence.documents, sequence.real)
        keys = held_keys(sequence, self.window, self.rolling)
        return Visible(visible(queries, keys, self.window, sequence.visibility, sequence.prefix)[:, None])

    def _without_mask(self, sequence: Sequence) -> Visible | None:
        past, T = sequence.past, sequence.length
        if sequence.documents is not None or sequence.real is not None or (past is not None and past.ragged):
            return None
        held = 0 if past is None else past.longest
        if sequence.visibility == "causal" and T == 1:
            return Visible(None) if self.window is None or self.rolling or held < self.window else None
        if self.window is not None:  # a mask at every length, so that one compiled graph serves them all
            return None
        if sequence.visibility == "bidirectional":
            return Visible(None)
        return Visible(None, causal=True) if sequence.visibility == "causal" and held == 0 else None


def rolls(sequence: Sequence) -> bool:
    """Whether a windowed mixer with a state keeps it in a rolling cache: preallocated states only."""
    return sequence.past is not None and sequence.past.slots


def visible(
    queries: Entries, keys: Entries, window: int | None, visibility: str = "causal", prefix: Tensor | None = None
) -> Tensor:
    """(B or 1, T, S) bool, as told in `VisibleKeys`; `prefix` (B, T) belongs to visibility "prefix"."""
    ahead = keys.index[:, None, :] - queries.index[:, :, None]
    if visibility == "causal":
        seen = ahead <= 0
    elif prefix is not None:
        seen = (ahead <= 0) | (keys.positions[:, None, :] < prefix[:, :, None])
    else:
        seen = torch.ones_like(ahead, dtype=torch.bool)
    if window is not None:
        seen = seen & (ahead.abs() < window)
    if keys.documents is not None and queries.documents is not None:
        seen = seen & (keys.documents[:, None, :] == queries.documents[:, :, None])
    if keys.real is not None:
        seen = seen & keys.real[:, None, :]
    return seen


def held_keys(sequence: Sequence, window: int | None = None, rolling: bool = False) -> Entries:
    """The keys that stand before the queries of a call, in their order, (B or 1, S) each.

    Of a growing cache: `sequence.entries()`. Of a rolling cache: the slots in use before the call, then the call's own
    tokens; for a single token the slots in use after it was written.
    """
    past = sequence.past
    if not rolling or past is None:
        return sequence.entries()
    assert window is not None
    new = Entries(sequence.index, sequence.positions, sequence.documents, sequence.real)
    if sequence.length != 1:
        return _joined(_slots(past, past.length, min(window, past.longest), window), new, past.batch)
    count = 1 if new.real is None else new.real[:, 0].long()
    slots = _slots(past, past.length + count, min(window, past.longest + 1), window)
    fresh = slots.index == past.length[:, None]  # not in the past's tables yet
    documents = None if new.documents is None else torch.where(fresh, new.documents, slots.documents)  # type: ignore[arg-type]
    return Entries(slots.index, torch.where(fresh, new.positions, slots.positions), documents, slots.real)


def _slots(past: Past, length: Tensor, used: int, window: int) -> Entries:
    """What the first `used` slots hold, (B, used) each, after `length` (B,) tokens; token i is in slot i mod window."""
    slot = torch.arange(used, device=length.device)
    last = length[:, None] - 1
    index = last - (last - slot).remainder(window)
    at = index.clamp(0, past.capacity - 1)
    return Entries(index, past.positions.gather(1, at), past.documents.gather(1, at), index >= 0)


def _joined(old: Entries, new: Entries, batch: int) -> Entries:
    assert old.real is not None
    real = torch.ones_like(new.index, dtype=torch.bool) if new.real is None else new.real

    def join(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b.expand(batch, -1)], 1)

    documents = None if new.documents is None or old.documents is None else join(old.documents, new.documents)
    return Entries(join(old.index, new.index), join(old.positions, new.positions), documents, join(old.real, real))
