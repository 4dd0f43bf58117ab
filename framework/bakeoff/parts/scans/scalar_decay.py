"""The chunked form of state-space duality and its gradient, in matrix products over all chunks at once.

Letters: B batch, n chunks, Q tokens of a chunk, H heads of width P in G groups of R, N state size. Of each chunk,
with `l_t` the log decays summed up to t inside t's document:

    Y = (L * C K^T) U + e * (C S^T) + D X       L_ij = exp(l_i - l_j), i >= j       e_i = exp(l_i)
    S' = k S + (w * U)^T K                      w_j = exp(l_Q - l_j)                k = exp(l_Q)

where K stands for B of the paper, U = dt X, S is the state that enters the chunk and S' the one that leaves it. An
entry of L, e, w or k that would join two documents is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Decays(NamedTuple):
    """What passes from one place to another.

    `inner` L (B, n, H, Q, Q); `reach` e and `left` w (B, n, Q, H); `keep` k (B, n, H); and `seen` (Q, Q) or
    (B, n, 1, Q, Q), 1 where a token and another, not later one are of the same document.
    """

    inner: Tensor
    reach: Tensor
    left: Tensor
    keep: Tensor
    seen: Tensor


def decays(log_a: Tensor, segments: Tensor | None) -> Decays:
    """All decays of `log_a` (B, n, Q, H), exact to its precision however strong they are."""
    Q = log_a.shape[2]
    seen = torch.ones(Q, Q, dtype=torch.bool, device=log_a.device).tril()
    if segments is not None:
        seen = seen & (segments[..., :, None] == segments[..., None, :])
    seen = seen.to(log_a.dtype)
    total = seen.double() @ log_a.double()  # sums are differenced below, so they are kept wider
    reach, left = (t.exp().to(log_a.dtype) for t in (total, total[:, :, -1:] - total))
    if segments is not None:
        entered = torch.nn.functional.pad(segments[:, :-1, -1], (1, 0))  # the document that the chunk continues
        reach = torch.where((segments == entered[..., None])[..., None], reach, 0)
        left = torch.where((segments == segments[:, :, -1:])[..., None], left, 0)
        seen = seen[:, :, None]
    total = total.transpose(2, 3)
    high = total.to(log_a.dtype)
    inner = high[..., :, None] - high[..., None, :]
    if high.dtype != total.dtype:
        low = (total - high).to(high.dtype)
        inner.add_(low[..., :, None]).sub_(low[..., None, :])
    inner.clamp_(max=0).exp_().mul_(seen)
    return Decays(inner, reach, left, reach[:, :, -1], seen)


class Chunked(torch.autograd.Function):
    """`apply(x, dt, log_a, K, C, D, state, segments) -> (y, state)`.

    `x` (B, n, Q, H, P); `dt`, `log_a` (B, n, Q, H); `K`, `C` (B, n, Q, G, N); `D` (H,); `state` (B, H, P, N) or None,
    then the state returned is None too; `segments` (B, n, Q) or None.
    """

    @staticmethod
    def forward(ctx: Any, x, dt, log_a, K, C, D, state, segments):  # type: ignore[no-untyped-def]
        decay = decays(log_a, segments)
        u = x * dt[..., None]
        scores = _rows(C) @ _rows(K).mT  # (B, n, G, Q, Q)
        inside = _weights(decay.inner, scores) @ u.transpose(2, 3).contiguous()
        y = x * D[:, None]
        y += inside.transpose(2, 3)
        after = entering = old = None
        if x.shape[1] > 1 or state is not None:
            last = x.shape[1] - (state is None)  # chunks whose state somebody reads
            leaving = _recur(_written(u, decay.left, K, last), decay.keep, state)
            if state is None:
                entering = leaving
            else:
                entering = torch.cat([state[:, None], leaving[:, :-1]], 1)
                after = leaving[:, -1].clone()
            old = _read(entering, decay.reach, C)
            y[:, -old.shape[1] :] += old
        ctx.save_for_backward(x, dt, K, C, D, scores, entering, old, *decay)
        ctx.continued = state is not None
        return y, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy, dafter):  # type: ignore[no-untyped-def]
        x, dt, K, C, D, scores, entering, old, *decay = ctx.saved_tensors
        decay = Decays(*decay)
        with torch.autocast(x.device.type, enabled=False):
            dy = dy.contiguous()
            u = x * dt[..., None]
            du, dscores, dtotal = _inside_backward(u, dy, scores, decay.inner)
            dK, dC = dscores.mT @ _rows(C), dscores @ _rows(K)
            dstate = None
            if entering is not None:
                given = (u, dy, entering, old, dafter, K, C, decay, ctx.continued)
                dstate = _between_backward(given, du, dtotal, dK, dC)
            dlog_a = (decay.seen.mT @ dtotal[..., None])[..., 0].transpose(2, 3)
            dx = torch.addcmul(dy * D[:, None], du, dt[..., None])
            return dx, (du * x).sum(-1), dlog_a, _columns(dK), _columns(dC), (dy * x).sum((0, 1, 2, 4)), dstate, None


def _rows(t: Tensor) -> Tensor:
    """(B, n, Q, G, K) -> (B, n, G, Q, K): a matrix of tokens for each group; no copy for one group."""
    return t.transpose(2, 3)


def _columns(t: Tensor) -> Tensor:
    """(B, n, G, Q, K) -> (B, n, Q, G, K)."""
    return t.transpose(2, 3)


def _weights(inner: Tensor, scores: Tensor) -> Tensor:
    """`L * C K^T` (B, n, H, Q, Q)."""
    return (inner.unflatten(2, (scores.shape[2], -1)) * scores[:, :, :, None]).flatten(2, 3)


def _written(u: Tensor, left: Tensor, K: Tensor, last: int) -> Tensor:
    """What each of the first `last` chunks adds to the state, (B, last, H, P, N)."""
    v = (u[:, :last] * left[:, :last, :, :, None]).unflatten(3, (K.shape[3], -1)).flatten(4)
    return (_rows(v).mT @ _rows(K[:, :last])).reshape(u.shape[0], last, *u.shape[3:], K.shape[-1])


def _recur(own: Tensor, keep: Tensor, state: Tensor | None) -> Tensor:
    """States that leave the chunks, written over what the chunks add to them."""
    for i in range(own.shape[1]):
        held = state if i == 0 else own[:, i - 1]
        if held is not None:
            own[:, i].addcmul_(held, keep[:, i, :, None, None])
    return own


def _read(entering: Tensor, reach: Tensor, C: Tensor) -> Tensor:
    """What the entering states (B, m, H, P, N) of the last m chunks give, (B, m, Q, H, P)."""
    m = entering.shape[1]
    S = entering.unflatten(2, (C.shape[3], -1)).flatten(3, 4)  # (B, m, G, RP, N)
    read = _columns(_rows(C[:, -m:]) @ S.mT).reshape(*reach[:, -m:].shape, -1)
    return read * reach[:, -m:, :, :, None]


def _inside_backward(u: Tensor, dy: Tensor, scores: Tensor, inner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `u` (B, n, Q, H, P), the scores (B, n, G, Q, Q), and summed log decays (B, n, H, Q)."""
    dyh = dy.transpose(2, 3).contiguous()
    weights = _weights(inner, scores)
    du = (weights.mT @ dyh).transpose(2, 3).contiguous()
    dweights = dyh @ u.transpose(2, 3).contiguous().mT
    through = weights.mul_(dweights)
    through.diagonal(dim1=-2, dim2=-1).zero_()  # no decay lies between a token and itself
    dtotal = through.sum(-1) - through.sum(-2)
    return du, dweights.mul_(inner).unflatten(2, (scores.shape[2], -1)).sum(3), dtotal


def _between_backward(given: tuple, du: Tensor, dtotal: Tensor, dK: Tensor, dC: Tensor) -> Tensor | None:
    """Add to the gradients what comes by way of the states; returns that of the first state."""
    u, dy, entering, old, dafter, K, C, decay, continued = given
    n, m, G = u.shape[1], entering.shape[1], K.shape[3]
    last = m if continued else n - 1
    S = entering.unflatten(2, (G, -1)).flatten(3, 4)
    dread = (dy[:, -m:] * decay.reach[:, -m:, :, :, None]).unflatten(3, (G, -1)).flatten(4)
    dtotal[:, -m:] += (dy[:, -m:] * old).sum(-1).transpose(2, 3)
    dC[:, -m:] += _rows(dread) @ S
    dS = (_rows(dread).mT @ _rows(C[:, -m:])).reshape(entering.shape)
    dleaving, dkeep, dstate = _recur_backward(dS, dafter, entering, decay.keep, continued)
    dtotal[:, :last, :, -1] += dkeep * decay.keep[:, :last]
    dS = dleaving.unflatten(2, (G, -1)).flatten(3, 4)
    v = u[:, :last] * decay.left[:, :last, :, :, None]
    dv = _columns(_rows(K[:, :last]) @ dS.mT).reshape(v.shape)
    dK[:, :last] += _rows(v.unflatten(3, (G, -1)).flatten(4)) @ dS
    dleft = (v * dv).sum(-1)[:, :, :-1].transpose(2, 3)  # the last token's left is 1 whatever its decay
    dtotal[:, :last, :, :-1] -= dleft
    dtotal[:, :last, :, -1] += dleft.sum(-1)
    du[:, :last].addcmul_(dv, decay.left[:, :last, :, :, None])
    return dstate


def _recur_backward(
    dentering: Tensor, dafter: Tensor | None, entering: Tensor, keep: Tensor, continued: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the leaving states (B, last, H, P, N), of `keep` (B, last, H), and of the first state."""
    m = dentering.shape[1]
    if continued:
        final = torch.zeros_like(dentering[:, :1]) if dafter is None else dafter[:, None]
        dleaving = torch.cat([dentering[:, 1:], final], 1)
    else:  # the state that enters chunk i + 1 is the one that leaves chunk i; none enters the first
        dleaving = dentering
    for i in range(m - 1, 0, -1):
        dleaving[:, i - 1].addcmul_(dleaving[:, i], keep[:, i, :, None, None])
    if continued:
        dstate = torch.addcmul(dentering[:, 0], dleaving[:, 0], keep[:, 0, :, None, None])
        return dleaving, (dleaving * entering).sum((-1, -2)), dstate
    dkeep = torch.zeros_like(keep[:, :m])
    dkeep[:, 1:] = (dleaving[:, 1:] * entering[:, :-1]).sum((-1, -2))
    return dleaving, dkeep, None
