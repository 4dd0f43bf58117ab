"""The chunks that the tokens of each document are cut into, from its first token on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bakeoff.interfaces.sequence import Sequence


class Ends(NamedTuple):
    """The last token of each whole chunk of a call, in order, for at most C chunks a row.

    `places` (B, C) long, where the token stands in the call, 0 where there is no such chunk; `last` (B, C) long, its
    `index` in the row, -1 where there is none.
    """

    places: Tensor
    last: Tensor


def ends(sequence: Sequence, chunk: int) -> Ends:
    """Of the chunks that end within the call; those begun before it, in the past, count."""
    whole = (sequence.positions + 1) % chunk == 0
    if sequence.real is not None:
        whole = whole & sequence.real
    whole = whole.expand(sequence.batch, -1)
    C = int(whole.sum(1).max()) if whole.numel() else 0
    places = torch.arange(sequence.length, device=whole.device).expand_as(whole)
    behind = torch.where(whole, places, sequence.length).sort(1).values[:, :C]
    there = behind < sequence.length
    at = torch.where(there, behind, 0)
    last = sequence.index.expand_as(whole).gather(1, at)
    return Ends(at, torch.where(there, last, -1))
