"""Softmax attention whose logits have a learned part that is alike in all rows: with few passes over what is large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def attend(q: Tensor, k: Tensor, v: Tensor, logits: Tensor, seen: Tensor | None = None) -> Tensor:
    """(X, Q, H, N), of queries (X, Q, H, N), keys and values (X, K, H, N), logits (X or 1, H, Q, K), seen (X, K).

    Softmax of `q k / sqrt(N) + logits` over the keys that are seen; what sees no key gets what no one may use.
    """
    mask: Tensor | None = None
    if seen is not None:
        nothing = q.new_zeros(seen.shape).masked_fill_(~seen, torch.finfo(q.dtype).min / 2)
        mask = nothing[:, None, None]
    logits = logits.to(q.dtype)
    if q.is_cpu:
        return _Attend.apply(q, k, v, logits, mask)
    added = logits if mask is None else logits + mask
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added).transpose(1, 2)


class _Attend(torch.autograd.Function):
    """In its own order: the learned logits are summed over rows once, and never written out row by row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, logits: Tensor, mask: Tensor | None) -> Tensor:
        X, _, H, N = q.shape
        q_, k_, v_ = (_by_head(t) for t in (q, k, v))
        added = logits if mask is None else logits + mask
        scores = added.expand(X, -1, -1, -1).flatten(0, 1) if mask is None else added.flatten(0, 1)
        p = torch.baddbmm(scores, q_, k_.mT, alpha=N**-0.5).softmax(-1).to(q.dtype)
        ctx.save_for_backward(q_, k_, v_, p)
        ctx.heads, ctx.rows = H, logits.shape[0]
        return _by_token(p @ v_, H)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p = ctx.saved_tensors
        dy = _by_head(grads[0])
        dscores = torch._softmax_backward_data(dy @ v.mT, p, -1, p.dtype)
        dlogits = dscores.unflatten(0, (-1, ctx.heads))
        dlogits = dlogits.sum(0, keepdim=True) if ctx.rows == 1 else dlogits
        scale = q.shape[2] ** -0.5
        dq, dk = dscores @ (k * scale), dscores.mT @ (q * scale)
        return *(_by_token(t, ctx.heads) for t in (dq, dk, p.mT @ dy)), dlogits, None


def _by_head(x: Tensor) -> Tensor:
    """(X, T, H, N) -> (X H, T, N)."""
    return x.transpose(1, 2).flatten(0, 1)


def _by_token(x: Tensor, heads: int) -> Tensor:
    """(X H, T, N) -> (X, T, H, N)."""
    return x.unflatten(0, (-1, heads)).transpose(1, 2)
