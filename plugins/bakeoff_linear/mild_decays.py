"""What decays leave of a chunk's pairs, by division: where a chunk leaves enough that one can divide by it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bakeoff_linear.chunks import Seen
from bakeoff_linear.decays import Decayed

#: A sum of log decays whose exponential can be divided by in float32, with room for what it multiplies.
MILD = -40.0


def decayed_mildly(r: Tensor, a: Tensor, b: Tensor, k: Tensor, log_a: Tensor, seen: Seen) -> Decayed:
    """Rows r, which see up to their token, and a, which see up to the one before; columns b and k; (n, B, H, Q, N) all.

    The log decays of a chunk sum up to no less than `MILD`. Of a first token of a document, a is 0.
    """
    *pairs, read_r, read_a, write_b, write_k, keep = _Mild.apply(r, a, b, k, log_a, seen)
    return Decayed([pairs[:2], pairs[2:]], [read_r, read_a], [write_b, write_k], keep)


class _Mild(torch.autograd.Function):
    """`apply(r, a, b, k, log_a, seen) -> (r b, r k, a b, a k, reads of r and a, writes of b and k, keep)`."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, a: Tensor, b: Tensor, k: Tensor, log_a: Tensor, seen: Seen) -> tuple[Tensor, ...]:
        up = (seen.pairs @ log_a).exp_()  # since its document began, so that none feels another's decays
        down, keep = up.reciprocal(), up[..., -1:, :].clone()
        rows, columns = (t.new_empty(*t.shape[:-2], 2 * t.shape[-2], t.shape[-1]) for t in (r, b))
        (of_r, of_a), (of_b, of_k) = rows.chunk(2, -2), columns.chunk(2, -2)
        torch.mul(r, up, out=of_r)
        of_a[..., 0, :] = a[..., 0, :]
        torch.mul(a[..., 1:, :], up[..., :-1, :], out=of_a[..., 1:, :])
        torch.mul(b, down, out=of_b)
        torch.mul(k, down, out=of_k)
        mask = torch.cat([seen.pairs, seen.pairs.tril(-1)], -2).repeat(*[1] * (seen.pairs.ndim - 1), 2)
        pairs, writes, reads = (rows @ columns.mT).mul_(mask), columns * keep, rows
        ctx.save_for_backward(rows, columns, writes, keep, up, down, mask)
        ctx.seen = seen
        if seen.entered is not None:
            entered, left = (torch.cat([t, t], -2) for t in (seen.entered, seen.left))
            reads, writes, keep = rows * entered, writes * left, keep * seen.kept
        quarters = [part for half in pairs.chunk(2, -2) for part in half.chunk(2, -1)]
        return *quarters, *reads.chunk(2, -2), *writes.chunk(2, -2), keep

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns, writes, keep, up, down, mask = ctx.saved_tensors
        dpairs = torch.cat([torch.cat(given[:2], -1), torch.cat(given[2:4], -1)], -2).mul_(mask)
        dreads, dwrites, dkeep = torch.cat(given[4:6], -2), torch.cat(given[6:8], -2), given[8] * keep
        if ctx.seen.entered is not None:
            entered, left = (torch.cat([t, t], -2) for t in (ctx.seen.entered, ctx.seen.left))
            dreads, dwrites, dkeep = dreads.mul_(entered), dwrites.mul_(left), dkeep.mul_(ctx.seen.kept)
        dkeep += (dwrites * writes).sum(-2, keepdim=True)
        drows = dreads.add_(dpairs @ columns)
        dcolumns = dwrites.mul_(keep).add_(dpairs.mT @ rows)
        (dr, da), (db, dk) = drows.chunk(2, -2), dcolumns.chunk(2, -2)
        (of_r, of_a), (of_b, of_k) = rows.chunk(2, -2), columns.chunk(2, -2)
        total = (dr * of_r).addcmul_(db, of_b, value=-1).addcmul_(dk, of_k, value=-1)  # of decays up to a token
        total[..., :-1, :].addcmul_(da[..., 1:, :], of_a[..., 1:, :])
        total[..., -1:, :] += dkeep
        da[..., 1:, :] *= up[..., :-1, :]
        return dr.mul_(up), da, db.mul_(down), dk.mul_(down), ctx.seen.pairs.mT @ total, None
