"""Rows of tokens cut where whole chunks of their documents end, and what stands before each piece."""

from __future__ import annotations

from typing import NamedTuple

import torch
from bakeoff.interfaces.neighbours import Neighbours
from bakeoff.interfaces.sequence import Sequence
from torch import Tensor


class Stretches(NamedTuple):
    """The R stretches that begin in a call of (B, T) tokens, in order of rows: each runs from a document's first token,
    or a chunk's last one, up to where the next begins.

    Attributes
    ----------
    row : (R,) long. first : (R,) long, the number of the stretch's first token among the row's real ones of the call.
    length : (R,) long, real tokens of the call. before : (R,) long, how many tokens stand before it as its context.
    whole : (R,) long, `index` in the row of the chunk's last token that it begins with, -1 where it begins a document.
    last : (R,) bool, no other begins in its row.
    of : (B, T) long, the stretch of each token, -1 of those that go on with one begun before, -2 of padding.
    count : (B, T) long, real tokens of the row in the call up to each, itself included.
    """

    row: Tensor
    first: Tensor
    length: Tensor
    before: Tensor
    whole: Tensor
    last: Tensor
    of: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which nobody needs here

    @property
    def offset(self) -> Tensor:
        """(B, T) long: how many tokens of the same stretch, and of the same call, stand before each token."""
        first = torch.cat([self.first, self.first.new_zeros(1)])
        return self.count - 1 - first[torch.where(self.of < 0, len(self.first), self.of)]


def stretches(sequence: Sequence, chunk: int, context: int) -> Stretches:
    """Of a call, with chunks of `chunk` tokens and at most `context` tokens of a document before each stretch."""
    shape = sequence.tokens.shape
    positions, index = sequence.positions.expand(shape), sequence.index.expand(shape)
    real = torch.ones_like(positions, dtype=torch.bool) if sequence.real is None else sequence.real
    ends = (positions + 1) % chunk == 0
    begins = real & (ends | (positions == 0))
    row, place = begins.nonzero(as_tuple=True)
    count = real.long().cumsum(1)
    first = count[row, place] - 1
    another = torch.cat([row[1:] == row[:-1], row.new_zeros(min(1, len(row)), dtype=torch.bool)])
    until = torch.where(another, first.roll(-1), count[row, -1])
    whole = torch.where(ends, index, -1)[row, place]
    number = begins.flatten().long().cumsum(0).view(shape) - 1
    of = torch.where(begins.long().cumsum(1) > 0, number, -1).masked_fill(~real, -2)
    before = positions[row, place].clamp_max(context)
    return Stretches(row, first, until - first, before, whole, ~another, of, count)


def texts(neighbours: Neighbours | None, row: Tensor, whole: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """The `k` nearest texts of each of R chunks, the nearest last: tokens and real, (R, k L), real ones first.

    row, whole : (R,) long, the chunk's row and the `index` of its last token, -1 for none.
    None where there are no neighbours at all.
    """
    if neighbours is None or not neighbours.last.shape[1]:
        return None
    same = (neighbours.last[row] == whole[:, None]) & (whole >= 0)[:, None]  # (R, C)
    which = same.long().argmax(1)
    tokens, real = (held[row, which, :k].flip(1).flatten(1) for held in (neighbours.tokens, neighbours.real))
    real = real & same.any(1)[:, None]
    order = (~real).long().argsort(dim=1, stable=True)
    return tokens.gather(1, order), real.gather(1, order)


def laid_out(
    found: tuple[Tensor, Tensor] | None, stream: Tensor, row: Tensor, begin: Tensor, length: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of texts and, after them, tokens of a stream: tokens and real (R, W), padded on the right, and how many
    tokens of texts each has, (R,).

    found : as `texts` gives them. stream : (B, S) long. row, begin, length : (R,) long, which of the stream's tokens.
    width : at least the largest of `length`.
    """
    if found is None:
        tokens, ahead = stream.new_zeros(len(row), 0), torch.zeros_like(row)
    else:
        tokens, ahead = found[0], found[1].sum(1)
    place = torch.arange(tokens.shape[1] + width, device=stream.device)[None] - ahead[:, None]  # in the stream's tokens
    at = (begin[:, None] + place).clamp(0, max(stream.shape[1] - 1, 0))
    after = stream[row[:, None], at]
    padded = torch.cat([tokens, tokens.new_zeros(len(row), width)], 1)
    return torch.where(place < 0, padded, after), place < length[:, None], ahead
