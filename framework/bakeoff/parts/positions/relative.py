"""Distances between the queries of a call and the keys before them."""

from __future__ import annotations

from torch import Tensor

from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.attention.masks import held_keys, rolls


def relative_positions(sequence: Sequence, window: int | None, rolling: bool) -> Tensor | None:
    """Key's position minus query's, (B or 1, T, S) long, keys as in `held_keys`; None where no rolling cache can be."""
    if rolling and not rolls(sequence):
        return None
    keys = held_keys(sequence, window, rolling).positions
    return keys[:, None, :] - sequence.positions[:, :, None]
