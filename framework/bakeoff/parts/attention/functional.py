"""Softmax attention as functions of tensors: queries (B, T, H, N), keys and values (B, S, K, N)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff.parts.attention.masks import Visible


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Visible,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(out, log-sum-exp)` as told in `AttentionOp.forward`; query head h reads key head h // (H / K).

    The fused kernel where it can express the request; a soft cap or sinks take explicit products and give the
    log-sum-exp too. A bias keeps logits in float32 whatever the type of `q`.
    """
    if soft_cap is not None or sinks is not None:
        return attend_explicitly(q, k, v, seen, scale=scale, bias=bias, soft_cap=soft_cap, sinks=sinks)
    if bias is not None:
        return _attend_with_bias(q, k, v, seen, bias, scale), None
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen.mask, is_causal=seen.causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2), None


def _attend_with_bias(q: Tensor, k: Tensor, v: Tensor, seen: Visible, bias: Tensor, scale: float | None) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    mask = _mask(seen, q.shape[1], k.shape[1], q.device)
    bias = bias.to(wide)
    if mask is not None:
        bias = bias.masked_fill(~mask, -math.inf)
    with torch.autocast(q.device.type, enabled=False):
        wide_q, wide_k, wide_v = (x.to(wide).transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            wide_q, wide_k, wide_v, attn_mask=bias, scale=scale, enable_gqa=q.shape[2] != k.shape[2]
        )
    return out.transpose(1, 2).to(q.dtype)


def attend_explicitly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Visible,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same by two matrix products, logits and softmax in float32 at least."""
    B, T, H, N = q.shape
    S, K = k.shape[1:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        grouped = q.to(wide).unflatten(2, (K, H // K)).permute(0, 2, 3, 1, 4).reshape(B, K, -1, N)  # (B, K, H/K T, N)
        keys = k.to(wide).permute(0, 2, 3, 1)  # (B, K, N, S)
        logits = (grouped @ keys * (N**-0.5 if scale is None else scale)).view(B, H, T, S)
        if soft_cap is not None:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        if bias is not None:
            logits = logits + bias.to(wide)
        mask = _mask(seen, T, S, q.device)
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        weights, total = _softmax(logits, None if sinks is None else sinks.to(wide))
        out = weights.view(B, K, -1, S) @ v.to(wide).transpose(1, 2)  # (B, K, H/K T, N)
    return out.view(B, H, T, N).transpose(1, 2).to(q.dtype), total


def _softmax(logits: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights (B, H, T, S) and log-sum-exp (B, H, T); a row without keys has weights of zero."""
    total = logits.logsumexp(-1)
    if sinks is not None:
        total = torch.logaddexp(total, sinks[:, None])
    empty = total == -math.inf
    weights = torch.exp(logits - total.masked_fill(empty, 0.0)[..., None])
    return weights, total


def _mask(seen: Visible, queries: int, keys: int, device: torch.device) -> Tensor | None:
    if not seen.causal:
        return seen.mask
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def attend_naively(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The definition, one query of one head at a time; `mask` is (B, T, S). For tests."""
    B, T, H, N = q.shape
    out = torch.zeros_like(q)
    for b in range(B):
        for t in range(T):
            for h in range(H):
                at = mask[b, t].nonzero()[:, 0]
                key = h // (H // k.shape[2])
                logits = k[b, at, key] @ q[b, t, h] * (N**-0.5 if scale is None else scale)
                if soft_cap is not None:
                    logits = soft_cap * torch.tanh(logits / soft_cap)
                if bias is not None:
                    logits = logits + bias[b % bias.shape[0], h, t, at]
                weights = logits.exp()
                total = weights.sum() if sinks is None else weights.sum() + sinks[h].exp()
                if len(at):
                    out[b, t, h] = weights @ v[b, at, key] / total
    return out
