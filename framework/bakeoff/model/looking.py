"""Looking up what is like the text of a row, as its chunks are completed."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

import torch
from torch import Tensor, nn

from bakeoff.errors import UserError
from bakeoff.interfaces.neighbours import NEIGHBOURS, Neighbours
from bakeoff.interfaces.part import Part


class Lookup(Protocol):
    """A database that can be searched for chunks of `chunk` tokens."""

    chunk: int

    def neighbours(self, chunks: Items[Items[int]]) -> tuple[Tensor, Tensor]:
        """Tokens (n, k, L) long and which of them are real, bool, of the neighbours of n chunks, given as ids."""


def reads_neighbours(model: nn.Module) -> bool:
    """Whether a part of the model reads neighbours."""
    return any(part.neighbours_of is not None for part in model.modules() if isinstance(part, Part))


class Looking:
    """The text of rows that are decoded, and what a database has on its latest chunks.

    Raises `UserError` where the database is cut into other chunks than a part of the model reads.
    """

    def __init__(self, lookup: Lookup, model: nn.Module, rows: list[list[int]]):
        for part in model.modules():
            if isinstance(part, Part) and part.neighbours_of not in (None, lookup.chunk):
                raise UserError(
                    f"{type(part).__name__} reads neighbours of chunks of {part.neighbours_of} tokens, and the "
                    f"database is searched by chunks of {lookup.chunk}; they must be equal"
                )
        self.lookup = lookup
        self.rows = [list(row) for row in rows]
        self.taken = [0] * len(rows)

    def push(self, tokens: list[int], ended: list[bool]) -> None:
        """One more token a row; a row that has ended is looked up no more."""
        for row, token, over in zip(self.rows, tokens, ended, strict=True):
            row.append(-1 if over else token)

    def take(self, places: list[int]) -> None:
        """Make the rows at `places` all that there are; they may repeat."""
        self.rows = [list(self.rows[place]) for place in places]
        self.taken = [self.taken[place] for place in places]

    def memory(self, counts: list[int], device: torch.device) -> dict[str, Neighbours]:
        """Of the chunks that end in a call which takes `counts` more tokens of each row; nothing where none does."""
        m = self.lookup.chunk
        found: list[list[int]] = []  # index of each chunk's last token, a list for each row
        for number, count in enumerate(counts):
            first, self.taken[number] = self.taken[number], self.taken[number] + count
            ended = range(first // m * m + m - 1, self.taken[number], m)
            found.append([last for last in ended if self.rows[number][last] >= 0])
        C = max(map(len, found))
        if not C:
            return {}
        chunks = [self.rows[row][last - m + 1 : last + 1] for row, lasts in enumerate(found) for last in lasts]
        tokens, real = self.lookup.neighbours(chunks)
        there = torch.tensor([[c < len(lasts) for c in range(C)] for lasts in found])
        last = torch.tensor([lasts + [-1] * (C - len(lasts)) for lasts in found])
        shape = (len(found), C, *tokens.shape[1:])
        laid = tokens.new_zeros(shape), real.new_zeros(shape)
        for held, each in zip(laid, (tokens, real), strict=True):
            held[there] = each
        return {NEIGHBOURS: Neighbours(laid[0].to(device), laid[1].to(device), last.to(device))}
