"""The chunked form of the scalar-decay recurrence and its gradient, in matrix products over all chunks at once.

Letters: B batch, n chunks, Q tokens of a chunk, H heads of width P in G groups of R, N width of keys. Of each chunk,
with `l_t` the log decays summed up to t inside t's document:

    Y = (L * f(q k^T)) U + e * (phi(q) S^T) + D v       L_ij = exp(l_i - l_j), i >= j       e_i = exp(l_i)
    S' = c S + (w * U)^T phi(k)                         w_j = exp(l_Q - l_j)                c = exp(l_Q)

where U is v times what is written of it, S is the state that enters the chunk and S' the one that leaves it, and phi a
feature map with `f(q . k) = phi(q) . phi(k)`, or nothing. An entry of L, e, w or c that would join two documents is 0.

Where ranks share out the tokens of a sequence, its spans are rows. All is done for each by itself, but what enters it
and, backward, what comes to the state that leaves it: sums over states of chunks, which ranks tell each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bakeoff.interfaces.spans import Spans
from bakeoff.parts.spans import relay


class FeatureMap(Protocol):
    """A map phi of queries and keys with products that are a function f of the products of what it maps."""

    def features(self, x: Tensor) -> Tensor:
        """`phi(x)` (..., features) of `x` (..., N)."""

    def gradient(self, x: Tensor, dphi: Tensor) -> Tensor:
        """That of `x`, from that of `phi(x)`."""

    def weights(self, products: Tensor) -> Tensor:
        """`f(s) = phi(q) . phi(k)` of `s = q . k`."""

    def slope(self, products: Tensor) -> Tensor:
        """The derivative of f at `s`."""


class Decays(NamedTuple):
    """What passes from one place to another; None where all does.

    `inner` L (B, n, H, Q, Q); `reach` e and `left` w (B, n, Q, H); `keep` c (B, n, H); and `seen` (Q, Q) or
    (B, n, 1, Q, Q), 1 where a token and another, not later one are of the same document. B, n and H are 1 in `inner`,
    and B and H in the others, where they make no difference.
    """

    inner: Tensor
    reach: Tensor | None
    left: Tensor | None
    keep: Tensor | None
    seen: Tensor


def decays(log_a: Tensor | None, segments: Tensor | None, like: Tensor) -> Decays:
    """All decays of `log_a` (B, n, Q, H), exact to its precision however strong they are.

    B, n and H of `log_a` may be 1. `like` (B, n, Q, ...) gives n and Q, and without `log_a` the type.
    """
    n, Q = like.shape[1:3]
    seen = torch.ones(Q, Q, dtype=torch.bool, device=like.device).tril()
    if segments is not None:
        seen = seen & (segments[..., :, None] == segments[..., None, :])
    seen = seen.to(like.dtype)
    if log_a is None and segments is None:
        return Decays(seen.expand(1, 1, 1, Q, Q), None, None, None, seen)
    if log_a is None:
        log_a = like.new_zeros(1, 1, Q, 1)
    total = seen.double() @ log_a.double()  # sums are differenced below, so they are kept wider
    reach, left = (t.exp().to(log_a.dtype) for t in (total, total[:, :, -1:] - total))
    if segments is not None:
        entered = torch.nn.functional.pad(segments[:, :-1, -1], (1, 0))  # the document that the chunk continues
        reach = torch.where((segments == entered[..., None])[..., None], reach, 0)
        left = torch.where((segments == segments[:, :, -1:])[..., None], left, 0)
        seen = seen[:, :, None]
    inner = _inner(total.transpose(2, 3), log_a.dtype, seen)
    reach, left = (t.expand(-1, n, -1, -1) for t in (reach, left))
    return Decays(inner, reach, left, reach[:, :, -1], seen)


def _inner(total: Tensor, dtype: torch.dtype, seen: Tensor) -> Tensor:
    high = total.to(dtype)
    inner = high[..., :, None] - high[..., None, :]
    if dtype != total.dtype:
        low = (total - high).to(dtype)
        inner.add_(low[..., :, None]).sub_(low[..., None, :])
    inner.clamp_(max=0).exp_()
    return inner.mul_(seen) if seen.ndim == 2 or seen.shape[:2] == inner.shape[:2] else inner * seen


class Chunked(torch.autograd.Function):
    """`apply(v, write, log_a, k, q, skip, state, segments, feature_map, spans) -> (y, state)`.

    `v` (B, n, Q, H, P); `write` (B, n, Q, H) or None for 1; `log_a` as for `decays`, whole (B, n, Q, H) if it has a
    gradient; `k`, `q` (B, n, Q, G, N); `skip` D (H,), or None for 0 if `write` is; `state` (B, H, P, features) or None,
    then the state returned is None too; `segments` (B, n, Q) or None; `feature_map` or None; `spans` or None: where
    there are several, B counts all rows of the first, then those of the next, and there is no state.
    """

    @staticmethod
    def forward(ctx: Any, v, write, log_a, k, q, skip, state, segments, feature_map, spans):
        decay = decays(log_a, segments, v)
        u = v if write is None else v * write[..., None]
        products = _rows(q) @ _rows(k).mT  # (B, n, G, Q, Q)
        scores = products if feature_map is None else feature_map.weights(products)
        inside = _weights(decay.inner, scores, v.shape[3]) @ u.transpose(2, 3).contiguous()
        y = inside.transpose(2, 3).contiguous() if skip is None else (v * skip[:, None]).add_(inside.transpose(2, 3))
        after = entering = old = None
        continued = state is not None or spans is not None  # a state enters
        if v.shape[1] > 1 or continued:
            last = v.shape[1] - (not continued)  # chunks whose state somebody reads, and who reads one
            given = k[:, :last], q[:, -last:]
            phi_k, phi_q = given if feature_map is None else (feature_map.features(t) for t in given)
            own = _written(u, decay.left, phi_k, last)
            entered = state if spans is None else passed(own, decay.keep, spans)
            leaving = _recur(own, decay.keep, entered)
            entering = leaving if entered is None else torch.cat([entered[:, None], leaving[:, :-1]], 1)
            after = None if state is None else leaving[:, -1].clone()
            old = _read(entering, decay.reach, phi_q)
            y[:, -old.shape[1] :] += old
        ctx.save_for_backward(v, write, k, q, skip, products, entering, old, *decay)
        ctx.continued, ctx.feature_map, ctx.spans = continued, feature_map, spans
        return y, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy, dafter):
        v, write, k, q, skip, products, entering, old, *saved = ctx.saved_tensors
        decay, decaying = Decays(*saved), ctx.needs_input_grad[2]
        with torch.autocast(v.device.type, enabled=False):
            dy = dy.contiguous()
            u = v if write is None else v * write[..., None]
            du, dproducts, dtotal = _inside_backward(u, dy, products, decay.inner, ctx.feature_map, decaying)
            dk, dq = dproducts.mT @ _rows(q), dproducts @ _rows(k)
            dstate = None
            if entering is not None:
                given = (u, dy, entering, old, dafter, k, q, decay, ctx.continued, ctx.feature_map, ctx.spans)
                dstate = _between_backward(given, du, dtotal, dk, dq)
            dlog_a = None if dtotal is None else (decay.seen.mT @ dtotal[..., None])[..., 0].transpose(2, 3)
            dv = du if write is None else torch.addcmul(dy * skip[:, None], du, write[..., None])
            dwrite = None if write is None else (du * v).sum(-1)
            dskip = None if skip is None else (dy * v).sum((0, 1, 2, 4))
            return dv, dwrite, dlog_a, _columns(dk), _columns(dq), dskip, dstate, None, None, None


def _rows(t: Tensor) -> Tensor:
    """(B, n, Q, G, N) -> (B, n, G, Q, N): a matrix of tokens for each group; no copy for one group."""
    return t.transpose(2, 3)


def _columns(t: Tensor) -> Tensor:
    """(B, n, G, Q, N) -> (B, n, Q, G, N)."""
    return t.transpose(2, 3)


def _weights(inner: Tensor, scores: Tensor, heads: int) -> Tensor:
    """`L * f(q k^T)` (B, n, H, Q, Q)."""
    G = scores.shape[2]
    each = inner.unflatten(2, (G if inner.shape[2] > 1 else 1, -1)) * scores[:, :, :, None]
    return each.expand(-1, -1, -1, heads // G, -1, -1).flatten(2, 3)


def _written(u: Tensor, left: Tensor | None, phi_k: Tensor, last: int) -> Tensor:
    """What each of the first `last` chunks adds to the state, (B, last, H, P, features)."""
    v = u[:, :last] if left is None else u[:, :last] * left[:, :last, :, :, None]
    v = v.unflatten(3, (phi_k.shape[3], -1)).flatten(4)
    return (_rows(v).mT @ _rows(phi_k)).reshape(u.shape[0], last, *u.shape[3:], phi_k.shape[-1])


def _recur(own: Tensor, keep: Tensor | None, state: Tensor | None) -> Tensor:
    """States that leave the chunks, written over what the chunks add to them."""
    for i in range(own.shape[1]):
        held = state if i == 0 else own[:, i - 1]
        if held is not None:
            _carry(own[:, i], held, keep, i)
    return own


def _carry(own: Tensor, held: Tensor, keep: Tensor | None, i: int) -> None:
    """Add to `own` (B, H, P, features) what chunk i keeps of `held`."""
    if keep is None:
        own.add_(held)
    else:
        own.addcmul_(held, keep[:, i, :, None, None])


def _read(entering: Tensor, reach: Tensor | None, phi_q: Tensor) -> Tensor:
    """What the entering states (B, m, H, P, features) of the last m chunks give, (B, m, Q, H, P)."""
    m, H, P = entering.shape[1:4]
    S = entering.unflatten(2, (phi_q.shape[3], -1)).flatten(3, 4)  # (B, m, G, RP, features)
    read = _columns(_rows(phi_q[:, -m:]) @ S.mT).reshape(-1, m, phi_q.shape[2], H, P)
    return read if reach is None else read * reach[:, -m:, :, :, None]


def _inside_backward(
    u: Tensor, dy: Tensor, products: Tensor, inner: Tensor, feature_map: FeatureMap | None, decaying: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of `u` (B, n, Q, H, P), the products (B, n, G, Q, Q), and summed log decays (B, n, H, Q)."""
    G, H = products.shape[2], u.shape[3]
    dyh = dy.transpose(2, 3).contiguous()
    weights = _weights(inner, products if feature_map is None else feature_map.weights(products), H)
    du = (weights.mT @ dyh).transpose(2, 3).contiguous()
    dweights = dyh @ u.transpose(2, 3).contiguous().mT
    dtotal = None
    if decaying:
        through = weights.mul_(dweights)
        through.diagonal(dim1=-2, dim2=-1).zero_()  # no decay lies between a token and itself
        dtotal = through.sum(-1) - through.sum(-2)
    dscores = dweights.mul_(inner)
    dscores = dscores if G == H else dscores.unflatten(2, (G, -1)).sum(3)
    return du, dscores if feature_map is None else dscores.mul_(feature_map.slope(products)), dtotal


def _between_backward(given: tuple, du: Tensor, dtotal: Tensor | None, dk: Tensor, dq: Tensor) -> Tensor | None:
    """Add to the gradients what comes by way of the states; returns that of the first state."""
    u, dy, entering, old, dafter, k, q, decay, continued, feature_map, spans = given
    n, m, G = u.shape[1], entering.shape[1], k.shape[3]
    last = m if continued else n - 1
    q, k = _rows(q[:, -m:]), _rows(k[:, :last])
    phi_q, phi_k = (t if feature_map is None else feature_map.features(t) for t in (q, k))
    S = entering.unflatten(2, (G, -1)).flatten(3, 4)
    dread = dy[:, -m:] if decay.reach is None else dy[:, -m:] * decay.reach[:, -m:, :, :, None]
    dread = _rows(dread.unflatten(3, (G, -1)).flatten(4))
    dphi_q = dread @ S
    dq[:, -m:] += dphi_q if feature_map is None else feature_map.gradient(q, dphi_q)
    dS = (dread.mT @ phi_q).reshape(entering.shape)
    if spans is not None:
        dafter = passed(dS, decay.keep, spans, reverse=True)
    dleaving, dkeep, dstate = _recur_backward(dS, dafter, entering, decay.keep, continued, dtotal is not None)
    dS = dleaving.unflatten(2, (G, -1)).flatten(3, 4)
    v = u[:, :last] if decay.left is None else u[:, :last] * decay.left[:, :last, :, :, None]
    dv = _columns(phi_k @ dS.mT).reshape(v.shape)
    dphi_k = _rows(v.unflatten(3, (G, -1)).flatten(4)) @ dS
    dk[:, :last] += dphi_k if feature_map is None else feature_map.gradient(k, dphi_k)
    if dtotal is not None:
        dtotal[:, -m:] += (dy[:, -m:] * old).sum(-1).transpose(2, 3)
        dtotal[:, :last, :, -1] += dkeep * decay.keep[:, :last]
        dleft = (v * dv).sum(-1)[:, :, :-1].transpose(2, 3)  # the last token's left is 1 whatever its decay
        dtotal[:, :last, :, :-1] -= dleft
        dtotal[:, :last, :, -1] += dleft.sum(-1)
    if decay.left is None:
        du[:, :last] += dv
    else:
        du[:, :last].addcmul_(dv, decay.left[:, :last, :, :, None])
    return None if spans is not None else dstate


def passed(own: Tensor, keep: Tensor | None, spans: Spans, *, reverse: bool = False) -> Tensor:
    """The states (rows, H, P, features) that enter the spans, from what each of their chunks adds to one, `own`.

    In `reverse`, the gradients of the states that leave them, from what the chunks add to that of the one that enters.
    """
    rows, n, H = own.shape[:3]
    keep = own.new_ones(rows, n, H) if keep is None else keep.expand(rows, n, H)
    after = keep if reverse else keep.flip(1)
    through = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1].cumprod(1)], 1)  # what is left of a chunk's
    left = torch.einsum("bnh...,bnh->bh...", own, through if reverse else through.flip(1))
    told = zip(keep.prod(1).chunk(len(spans.own)), left.chunk(len(spans.own)), strict=True)
    return torch.cat(
        relay(list(told), _follow, torch.zeros_like(left[: rows // len(spans.own)]), spans, reverse=reverse)
    )


def _follow(state: Tensor, told: tuple[Tensor, ...]) -> Tensor:
    keep, left = told
    return torch.addcmul(left, state, keep[..., None, None])


def _recur_backward(
    dentering: Tensor, dafter: Tensor | None, entering: Tensor, keep: Tensor | None, continued: bool, decaying: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of the leaving states (B, last, H, P, features), of `keep` (B, last, H), and of the first state."""
    m = dentering.shape[1]
    if continued:
        final = torch.zeros_like(dentering[:, :1]) if dafter is None else dafter[:, None]
        dleaving = torch.cat([dentering[:, 1:], final], 1)
    else:  # the state that enters chunk i + 1 is the one that leaves chunk i; none enters the first
        dleaving = dentering
    for i in range(m - 1, 0, -1):
        _carry(dleaving[:, i - 1], dleaving[:, i], keep, i)
    dkeep = dstate = None
    if continued:
        dstate = dentering[:, 0].clone()
        _carry(dstate, dleaving[:, 0], keep, 0)
        dkeep = (dleaving * entering).sum((-1, -2)) if decaying else None
    elif decaying and keep is not None:
        dkeep = torch.zeros_like(keep[:, :m])
        dkeep[:, 1:] = (dleaving[:, 1:] * entering[:, :-1]).sum((-1, -2))
    return dleaving, dkeep, dstate
