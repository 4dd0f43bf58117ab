"""A sequence as the chunks that parts are called on, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import Entries, Need, Past, Sequence
from torch import Tensor


@dataclass(frozen=True)
class Chunks(Need):
    """The sequence in calls of `chunk` tokens, the last of what is left, with all that `needs` name derived of each.

    Each has the past that the one before leaves. Where no state is used they have one that grows, as under gradients.
    """

    chunk: int
    needs: tuple[Need, ...]

    def derive(self, sequence: Sequence) -> list[Sequence] | None:
        """One chunk is the sequence itself; None where ranks share it out. Raises `CapabilityError` where tokens see
        later ones."""
        if sequence.spans is not None:
            return None
        if sequence.visibility != "causal":
            raise CapabilityError(
                f"blockwise_transformer runs chunk after chunk and cannot let tokens see later ones (visibility "
                f"'{sequence.visibility}'); use pre_norm"
            )
        T = sequence.length
        if self.chunk >= T:
            return [sequence.as_seen()]
        past = sequence.past or Past(sequence.batch, T, sequence.tokens.device, slots=False)
        all_, held = sequence.entries(), 0 if past.entries is None else past.entries.index.shape[1]
        chunks = []
        for start in range(0, T, self.chunk):
            own = _part(sequence, slice(start, min(start + self.chunk, T)), past)
            chunks.append(own.prepare(self.needs))
            past = past.advance(own)
            if not past.slots:  # of the tensors that hold all tokens, not copies
                past.entries = Entries(*(None if x is None else x[:, : held + start + own.length] for x in all_))  # type: ignore[arg-type]
        return chunks


def _part(sequence: Sequence, places: slice, past: Past) -> Sequence:
    documents, real, positions = (
        None if x is None else x[:, places] for x in (sequence.documents, sequence.real, sequence.positions)
    )
    return Sequence(
        sequence.tokens[:, places],
        documents=documents,
        real=real,
        positions=positions,
        memory=sequence.memory,
        past=past,
    )


def memory_of(sequence: Sequence, sizes: list[int]) -> list[dict[str, Any]]:
    """What earlier parts show (B, T, …), chunk by chunk; values from outside, with sequences of their own, whole."""
    shown = {name: value.split(sizes, 1) for name, value in sequence.memory.items() if isinstance(value, Tensor)}
    outside = {name: value for name, value in sequence.memory.items() if name not in shown}
    return [{**outside, **{name: parts[i] for name, parts in shown.items()}} for i in range(len(sizes))]


def joined(shown: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What parts show in all chunks together. Raises `CapabilityError` for anything but (B, T, …) tensors."""
    for name, value in shown[0].items():
        if not isinstance(value, Tensor):
            raise CapabilityError(
                f"blockwise_transformer: '{name}', which a part shows in memory, is no tensor of tokens and cannot be "
                "put together from chunks; use pre_norm"
            )
    return {name: torch.cat([one[name] for one in shown], 1) for name in shown[0]}
