"""What decays leave of the pairs of a chunk's tokens, and of its tokens at the chunk's borders.

Rows (n, B, H, Q, N) read what columns (n, B, H, Q, N) have written: a pair's product is that of row t, column j <= t
and the decays of the tokens after j up to t. Decays are logarithms and only ever summed between two tokens, so that
none is divided by another, however strong.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bakeoff_linear.chunks import Seen
from bakeoff_linear.correction import inner_blocks


class Decayed(NamedTuple):
    """`pairs[r][c]` (n, B, H, Q, Q) of row r and column c; `reads[r]` what row r sees of the entering state;
    `writes[c]` what of column c arrives at the end; `keep` (n, B, H, 1, N or 1) what of the state does."""

    pairs: list[list[Tensor]]
    reads: list[Tensor]
    writes: list[Tensor]
    keep: Tensor


def decayed_by_head(rows: list[Tensor], columns: list[Tensor], log_a: Tensor | None, seen: Seen) -> Decayed:
    """One decay a head and token, `log_a` (n, B, H, Q), or none."""
    if log_a is None:
        keep = rows[0].new_ones(*rows[0].shape[:3], 1, 1) if seen.kept is None else seen.kept
        inner, reach, left = seen.pairs, None, None
        keep = keep.expand(*rows[0].shape[:3], 1, 1)
    else:
        total = (seen.pairs.double() @ log_a.double()[..., None])[..., 0]  # sums are differenced, so they are wider
        inner = (total[..., :, None] - total[..., None, :]).clamp_max(0).exp().to(log_a.dtype) * seen.pairs
        reach, left = (t.exp().to(log_a.dtype)[..., None] for t in (total, total[..., -1:] - total))
        keep = _masked(reach[..., -1:, :], seen.kept)
    pairs = [[row @ column.mT * inner for column in columns] for row in rows]
    reads = [_masked(row if reach is None else row * reach, seen.entered) for row in rows]
    writes = [_masked(column if left is None else column * left, seen.left) for column in columns]
    return Decayed(pairs, reads, writes, keep)


def decayed_by_channel(rows: list[Tensor], columns: list[Tensor], log_a: Tensor, seen: Seen) -> Decayed:
    """One decay a key channel and token, `log_a` (n, B, H, Q, N).

    Of every block on the diagonal, its second half reads its first by way of the border between them: rows decay from
    there, columns up to there, and their product is one of matrices; halves are blocks in turn.
    """
    Q = log_a.shape[-2]
    pairs = [[torch.diag_embed((row * column).sum(-1)) for column in columns] for row in rows]
    since, until, size = log_a, torch.zeros_like(log_a), 1  # decays up to a token, and after it, in its block
    while size < Q:
        halves = [_halves(t, size) for t in (since, until)]
        (since_0, since_1), (until_0, until_1) = halves
        late = [_halves(row, size)[1] * since_1.exp() for row in rows]
        early = [_halves(column, size)[0] * until_0.exp() for column in columns]
        for r, row in enumerate(late):
            for c, column in enumerate(early):
                inner_blocks(pairs[r][c], size, 1, 0).copy_(row @ column.mT)
        since = torch.cat([since_0, since_1 + since_0[..., -1:, :]], -2).flatten(-3, -2)
        until = torch.cat([until_0 + since_1[..., -1:, :], until_1], -2).flatten(-3, -2)
        size *= 2
    reach, left = since.exp(), until.exp()
    return Decayed(
        [[pair * seen.pairs for pair in row] for row in pairs],
        [_masked(row * reach, seen.entered) for row in rows],
        [_masked(column * left, seen.left) for column in columns],
        _masked(reach[..., -1:, :], seen.kept),
    )


def _halves(t: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Of each 2 `size` rows of (..., Q, N) the first half and the second, (..., blocks, size, N)."""
    return t.unflatten(-2, (-1, 2, size)).unbind(-3)


def _masked(t: Tensor, mask: Tensor | None) -> Tensor:
    return t if mask is None else t * mask
