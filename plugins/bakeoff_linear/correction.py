"""Writes that read the state first, a chunk of tokens at once: the WY form of products of rank-one changes.

Letters: n chunks, J rows (batch times heads), Q tokens of a chunk, N key width, P value width. Of each chunk:

    (I + M) U = X - R S^T        Y = G S^T + C U        S' = S * keep + U^T W + A

where row t of U (Q, P) is what token t writes, corrected by what it finds; M (Q, Q), below its diagonal, is how much a
token finds of what earlier ones have written, R (Q, N) what it finds of the entering state S (P, N); C (Q, Q) and
G (Q, N) are the same for the readout Y (Q, P); W (Q, N) is what of U arrives at the chunk's end (Yang et al., 2024,
arXiv:2406.06484).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def unit_lower_inverse(M: Tensor) -> Tensor:
    """`(I + L)^-1` of what of M (..., Q, Q) lies below the diagonal, Q a power of two: blocks, joined two by two.

    Above the diagonal M must be 0.
    """
    Q = M.shape[-1]
    inverse = -M
    inverse.diagonal(dim1=-2, dim2=-1).fill_(1.0)  # inverse of each block of one; of two by two already
    size = 2
    while size < Q:
        first, second, below = (inner_blocks(inverse, size, *place) for place in ((0, 0), (1, 1), (1, 0)))
        below.copy_(second @ (below @ first))
        size *= 2
    return inverse


def inner_blocks(matrix: Tensor, size: int, row: int, column: int) -> Tensor:
    """One quarter of each 2 `size` wide block on the diagonal of (..., Q, Q): a view (..., blocks, size, size)."""
    blocks = matrix.shape[-1] // (2 * size)
    halves = matrix.unflatten(-1, (blocks, 2, size)).unflatten(-4, (blocks, 2, size))  # (..., b, 2, s, b, 2, s)
    return halves.diagonal(dim1=-6, dim2=-3)[..., row, :, column, :, :].movedim(-1, -3)


class Corrected(torch.autograd.Function):
    """`apply(M, C, X, R, G, W, keep, A, state) -> (Y, state)`; gradients of M and C mean nothing above the diagonal.

    `M`, `C` (n, J, Q, Q); `X` (n, J, Q, P); `R`, `G`, `W` (n, J, Q, N); `keep` (n, J, 1, N) or (n, J, 1, 1); `A`
    (n, J, P, N) or None for 0; `state` (J, P, N) or None for 0, then the state returned is None too.
    """

    @staticmethod
    def forward(ctx: Any, M, C, X, R, G, W, keep, A, state):
        n, J, P = X.shape[0], X.shape[1], X.shape[3]
        inverse, U, S = unit_lower_inverse(M), torch.empty_like(X), state
        first = 0 if state is not None else 1  # the first chunk that a state enters
        entering = X.new_empty(n - first, J, P, R.shape[-1])
        for i in range(n):
            if S is not None:
                entering[i - first] = S
            found = X[i] if S is None else torch.baddbmm(X[i], R[i], S.mT, alpha=-1)
            torch.bmm(inverse[i], found, out=U[i])
            if i + 1 == n and state is None:
                break
            written = torch.bmm(U[i].mT, W[i]) if A is None else torch.baddbmm(A[i], U[i].mT, W[i])
            S = written if S is None else written.addcmul_(S, keep[i])
        Y = C @ U
        if entering.shape[0]:
            Y[first:] += G[first:] @ entering.mT
        ctx.save_for_backward(inverse, C, U, R, G, W, keep, entering)
        ctx.added, ctx.first = A is not None, first
        return Y, None if state is None else S

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dY, dafter):
        inverse, C, U, R, G, W, keep, entering = ctx.saved_tensors
        n, first = dY.shape[0], ctx.first
        with torch.autocast(dY.device.type, enabled=False):
            dU, dX = C.mT @ dY, torch.empty_like(dY)
            dentering = dY[first:].mT @ G[first:]  # by way of the readout
            dleaving = torch.zeros(n, *entering.shape[1:], dtype=dY.dtype, device=dY.device)
            dS = dafter
            for i in range(n - 1, -1, -1):
                if dS is not None:
                    dleaving[i] = dS
                    dU[i].baddbmm_(W[i], dS.mT)
                torch.bmm(inverse[i].mT, dU[i], out=dX[i])
                if i < first:
                    dS = None
                    continue
                found = torch.baddbmm(dentering[i - first], dX[i].mT, R[i], alpha=-1)
                dS = found if dS is None else found.addcmul_(dS, keep[i])
            dR, dG, dkeep = (torch.empty_like(t) for t in (R, G, keep))
            for t in (dR, dG, dkeep):
                t[:first].zero_()
            _product(dX[first:], entering, dR[first:], -1)
            _product(dY[first:], entering, dG[first:])
            dkeep[first:] = (dleaving[first:] * entering).sum_to_size(keep[first:].shape)
            dM = _product(dX, U.mT, torch.empty_like(inverse), -1)
            dM.diagonal(dim1=-2, dim2=-1).zero_()
            dstate = dS if first == 0 else None
            return dM, dY @ U.mT, dX, dR, dG, U @ dleaving, dkeep, dleaving if ctx.added else None, dstate


def _product(a: Tensor, b: Tensor, out: Tensor, scale: float = 1.0) -> Tensor:
    """`scale a b`, written to `out`, of (n, J, ., .)."""
    a, b, flat = (t.flatten(0, 1) for t in (a, b, out))
    torch.baddbmm(flat, a, b, beta=0, alpha=scale, out=flat)
    return out
