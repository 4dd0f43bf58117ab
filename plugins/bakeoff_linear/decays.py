"""What decays leave of the pairs of a chunk's tokens, and of its tokens at the chunk's borders.

Rows (n, B, H, Q, N) read what columns (n, B, H, Q, N) have written: a pair's product is that of row t, column j <= t
and the decays of the tokens after j up to t. Those are multiplied up between two tokens, or their logarithms summed,
and never divided by one another, however strong they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    if log_a is not None:
        return _listed(_ByHead.apply(log_a, seen, len(rows), *rows, *columns), len(rows), len(columns))
    keep = rows[0].new_ones(1) if seen.kept is None else seen.kept
    return Decayed(
        [[row @ column.mT * seen.pairs for column in columns] for row in rows],
        [_masked(row, seen.entered) for row in rows],
        [_masked(column, seen.left) for column in columns],
        keep.expand(*rows[0].shape[:3], 1, 1),
    )


def decayed_by_channel(rows: list[Tensor], columns: list[Tensor], log_a: Tensor, seen: Seen) -> Decayed:
    """One decay a key channel and token, `log_a` (n, B, H, Q, N).

    Of every block on the diagonal, its second half reads its first by way of the border between them: rows decay from
    there, columns up to there, and their product is one of matrices; halves are blocks in turn.
    """
    return _listed(_ByChannel.apply(log_a, seen, len(rows), *rows, *columns), len(rows), len(columns))


def _listed(found: tuple[Tensor, ...], R: int, C: int) -> Decayed:
    each = iter(found)
    pairs = [[next(each) for _ in range(C)] for _ in range(R)]
    return Decayed(pairs, [next(each) for _ in range(R)], [next(each) for _ in range(C)], next(each))


class _ByHead(torch.autograd.Function):
    """`apply(log_a, seen, R, *rows, *columns) -> (*pairs, *reads, *writes, keep)`, R rows."""

    @staticmethod
    def forward(ctx: Any, log_a: Tensor, seen: Seen, R: int, *tokens: Tensor) -> tuple[Tensor, ...]:
        rows, columns = tokens[:R], tokens[R:]
        total = (seen.pairs.double() @ log_a.double()[..., None])[..., 0]  # sums are differenced, so they are wider
        until = (total[..., -1:] - total).clamp_(max=0)  # of another document it may be over 0, and is masked
        reach, left = (t.exp().to(log_a.dtype)[..., None] for t in (total, until))
        keep = _masked(reach[..., -1:, :], seen.kept)
        reach, left = _masked(reach, seen.entered), _masked(left, seen.left)
        high = total.to(log_a.dtype)
        low = (total - high).to(log_a.dtype)
        inner = (high[..., :, None] - high[..., None, :]).add_(low[..., :, None]).sub_(low[..., None, :])
        inner.clamp_(max=0).exp_().mul_(seen.pairs)
        products = [row @ column.mT for row in rows for column in columns]
        ctx.save_for_backward(inner, reach, left, keep, *products, *tokens)
        ctx.seen, ctx.R = seen, R
        pairs = [product * inner for product in products]
        return *pairs, *(row * reach for row in rows), *(column * left for column in columns), keep

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        R, C = ctx.R, len(given) // (ctx.R + 1) - 1
        inner, reach, left, keep, *others = ctx.saved_tensors
        products, rows, columns = others[: R * C], others[R * C : R * C + R], others[R * C + R :]
        dreads, dwrites = given[R * C : R * C + R], given[R * C + R : -1]
        dproducts = [d * inner for d in given[: R * C]]
        through = _dots(products, dproducts)
        through.diagonal(dim1=-2, dim2=-1).zero_()  # no decay lies between a token and itself
        dreach = _dots(rows, dreads).sum(-1, keepdim=True).mul_(reach)
        dleft = _dots(columns, dwrites).sum(-1, keepdim=True).mul_(left)[..., :-1, :]
        dtotal = (through.sum(-1) - through.sum(-2))[..., None] + dreach
        dtotal[..., :-1, :] -= dleft
        dtotal[..., -1:, :] += dleft.sum(-2, keepdim=True) + given[-1] * keep
        drows, dcolumns = [d * reach for d in dreads], [d * left for d in dwrites]
        for r in range(R):
            for c in range(C):
                drows[r] += dproducts[r * C + c] @ columns[c]
                dcolumns[c] += dproducts[r * C + c].mT @ rows[r]
        return (ctx.seen.pairs.mT @ dtotal)[..., 0], None, None, *drows, *dcolumns


class _ByChannel(torch.autograd.Function):
    """`apply(log_a, seen, R, *rows, *columns) -> (*pairs, *reads, *writes, keep)`, R rows."""

    @staticmethod
    def forward(ctx: Any, log_a: Tensor, seen: Seen, R: int, *tokens: Tensor) -> tuple[Tensor, ...]:
        rows, columns = tokens[:R], tokens[R:]
        pairs = [[torch.diag_embed((row * column).sum(-1)) for column in columns] for row in rows]
        borders, reach, left = _borders(log_a)
        for size, decay in borders.items():
            early, late = _halves(decay, size)
            firsts = [_halves(column, size)[0] * early for column in columns]
            for r, row in enumerate(rows):
                second = _halves(row, size)[1] * late
                for c, first in enumerate(firsts):
                    inner_blocks(pairs[r][c], size, 1, 0).copy_(_outer(second, first))
        keep = reach[..., -1:, :].clone()
        if seen.entered is not None:
            pairs = [[pair.mul_(seen.pairs) for pair in row] for row in pairs]
            reach, left, keep = reach * seen.entered, left * seen.left, keep * seen.kept
        ctx.save_for_backward(reach, left, keep, *borders.values(), *tokens)
        ctx.seen, ctx.R = seen, R
        found = [row * reach for row in rows], [column * left for column in columns]
        return *(pair for row in pairs for pair in row), *found[0], *found[1], keep

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        reach, left, keep, *others = ctx.saved_tensors
        R, levels = ctx.R, reach.shape[-2].bit_length() - 1
        borders, rows, columns = others[:levels], others[levels : levels + R], others[levels + R :]
        C = len(columns)
        dpairs = [[given[r * C + c] for c in range(C)] for r in range(R)]
        if ctx.seen.entered is not None:
            dpairs = [[pair * ctx.seen.pairs for pair in row] for row in dpairs]
        drows = [d * reach for d in given[R * C : R * C + R]]
        dcolumns = [d * left for d in given[R * C + R : -1]]
        since, until = _dots(rows, drows), _dots(columns, dcolumns)  # gradients of decays up to a token, and after it
        since[..., -1:, :] += given[-1] * keep
        for level in range(levels - 1, -1, -1):
            _border_backward(1 << level, borders[level], (rows, columns), dpairs, (drows, dcolumns), (since, until))
        for r in range(R):
            for c in range(C):
                alone = dpairs[r][c].diagonal(dim1=-2, dim2=-1)[..., None]
                drows[r].addcmul_(alone, columns[c])
                dcolumns[c].addcmul_(alone, rows[r])
        return since, None, None, *drows, *dcolumns


def _borders(log_a: Tensor) -> tuple[dict[int, Tensor], Tensor, Tensor]:
    """What is left at the borders between halves, by their size; what is left up to a token, and after it, in all.

    Of each size (..., Q, N): for a token of a first half, what the tokens after it up to the border leave; for one of
    a second half, what those from the border up to it leave.
    """
    since, until, borders, size = log_a.exp(), torch.ones_like(log_a), {}, 1
    while size < log_a.shape[-2]:
        borders[size] = torch.empty_like(log_a)
        (since_0, since_1), (until_0, _), (early, late) = (_halves(t, size) for t in (since, until, borders[size]))
        early.copy_(until_0)
        late.copy_(since_1)
        until_0 *= since_1[..., -1:, :]
        since_1 *= since_0[..., -1:, :]
        size *= 2
    return borders, since, until


def _border_backward(
    size: int, decay: Tensor, tokens: Any, dpairs: list[list[Tensor]], gradients: Any, sums: Any
) -> None:
    """Add what comes by way of the borders between halves of `size` to the gradients of rows and columns.

    `sums` are the gradients of the log decays up to a token, and after it, in blocks of twice `size`, and then of
    `size`.
    """
    (rows, columns), (drows, dcolumns) = tokens, gradients
    (since_0, since_1), (until_0, _) = (_halves(t, size) for t in sums)
    since_0[..., -1, :] += since_1.sum(-2)
    since_1[..., -1, :] += until_0.sum(-2)
    early, late = _halves(decay, size)
    blocks = [[inner_blocks(d, size, 1, 0) for d in row] for row in dpairs]
    seconds = [_halves(row, size)[1] for row in rows]
    firsts = [_halves(column, size)[0] for column in columns]
    arrived = [first * early for first in firsts]
    for r, second in enumerate(seconds):
        d = _sum(_product(block, first) for block, first in zip(blocks[r], arrived, strict=True)).mul_(late)
        _halves(drows[r], size)[1].add_(d)
        since_1.addcmul_(d, second)
    arrived = [second * late for second in seconds]
    for c, first in enumerate(firsts):
        d = _sum(_product(row[c].mT, second) for row, second in zip(blocks, arrived, strict=True)).mul_(early)
        _halves(dcolumns[c], size)[0].add_(d)
        until_0.addcmul_(d, first)


def _halves(t: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Of each 2 `size` rows of (..., Q, N) the first half and the second, (..., blocks, size, N)."""
    first, second = t.unflatten(-2, (-1, 2, size)).unbind(-3)
    return first, second


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """`a b^T`; for single rows, the library's product is the slower one."""
    return (a * b).sum(-1, keepdim=True) if a.shape[-2] == 1 else a @ b.mT


def _product(a: Tensor, b: Tensor) -> Tensor:
    """`a b` of (..., s, s) and (..., s, N); for s of 1 or 2, the library's product is the slower one."""
    if a.shape[-1] > 2:
        return a @ b
    product = a[..., :1] * b[..., :1, :]
    return product if a.shape[-1] == 1 else product.addcmul_(a[..., 1:], b[..., 1:, :])


def _dots(a: Any, b: Any) -> Tensor:
    """The sum of the products of each two, number by number."""
    total = a[0] * b[0]
    for first, second in zip(a[1:], b[1:], strict=True):
        total.addcmul_(first, second)
    return total


def _sum(terms: Any) -> Tensor:
    """The sum, written over the first."""
    first, *others = terms
    for other in others:
        first += other
    return first


def _masked(t: Tensor, mask: Tensor | None) -> Tensor:
    return t if mask is None else t * mask
