"""Softmax attention as functions of tensors: queries (B, T, H, N), keys and values (B, S, K, N)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff.parts.attention.sinks import attend_with_sinks, fuses_sinks


class Scoring(NamedTuple):
    """How a query scores a key: `cap(scale * q . k) + bias`, in a softmax that `sinks` take part in.

    `scale` None is 1 / sqrt(N); `bias` is (B or 1, H, T, S); `soft_cap` c makes logits c tanh(logits / c); `sinks` (H,)
    are logits of a key whose value is zero.
    """

    scale: float | None = None
    bias: Tensor | None = None
    soft_cap: float | None = None
    sinks: Tensor | None = None


class Visible(NamedTuple):
    """`mask` (B or 1, 1, T, S), True where query t sees key s; None: every query sees all keys.

    With `causal` the mask is None and left to the kernel: T = S, and query t sees keys 0 to t.
    """

    mask: Tensor | None
    causal: bool = False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor | None]:
        """`attend` over what is visible."""
        return attend(q, k, v, self, scoring)

    def explicit(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """The mask, also where the kernel needs none."""
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril() if self.causal else self.mask


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Visible, scoring: Scoring) -> tuple[Tensor, Tensor | None]:
    """`(out, log-sum-exp)`, (B, T, H, N) and (B, H, T) or None; query head h reads key head h // (H / K).

    The fused kernel where it can express the request; a soft cap takes explicit products, as sinks do beside a bias or
    off the CPU, and gives the log-sum-exp too. A bias keeps logits in float32 whatever the type of `q`.
    """
    if scoring.sinks is not None and scoring.soft_cap is None and scoring.bias is None and fuses_sinks(q, k, v):
        return attend_with_sinks(q, k, v, scoring.sinks, seen.mask, seen.causal, scoring.scale), None
    if scoring.soft_cap is not None or scoring.sinks is not None:
        return attend_explicitly(q, k, v, seen, scoring)
    if scoring.bias is not None:
        return _attend_with_bias(q, k, v, seen, scoring.bias, scoring.scale), None
    return _fused(q, k, v, seen.mask, scoring.scale, seen.causal), None


def _attend_with_bias(q: Tensor, k: Tensor, v: Tensor, seen: Visible, bias: Tensor, scale: float | None) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    mask = seen.explicit(q.shape[1], k.shape[1], q.device)
    bias = bias.to(wide)
    if mask is not None:
        bias = bias.masked_fill(~mask, -math.inf)
    with torch.autocast(q.device.type, enabled=False):
        return _fused(q.to(wide), k.to(wide), v.to(wide), bias, scale).to(q.dtype)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, causal: bool = False) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    missing = k.shape[3] - v.shape[3]
    if q.is_cpu and missing > 0:  # the CPU's fused kernel asks for equal widths
        return _kernel(q, k, F.pad(v, (0, missing)), mask, scale, causal)[..., :-missing].transpose(1, 2)
    return _kernel(q, k, v, mask, scale, causal).transpose(1, 2)


def _kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, causal: bool) -> Tensor:
    """(B, H, T, N), (B, K, S, N) and (B, K, S, P) -> (B, H, T, P)."""
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.shape[2] == 1 and mask is None:  # the heads of a group as so many queries, which see the same keys
        folded = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
        return F.scaled_dot_product_attention(folded, k, v, scale=scale).reshape(*q.shape[:3], -1)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped)


def attend_explicitly(q: Tensor, k: Tensor, v: Tensor, seen: Visible, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """`attend` by two matrix products, logits and softmax in float32 at least."""
    B, T, H, N = q.shape
    S, K = k.shape[1:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = N**-0.5 if scoring.scale is None else scoring.scale
    with torch.autocast(q.device.type, enabled=False):
        grouped = q.to(wide).unflatten(2, (K, -1)).permute(0, 2, 3, 1, 4).reshape(B, K, H // K * T, N)
        logits = (grouped @ k.to(wide).permute(0, 2, 3, 1) * scale).view(B, H, T, S)
        if scoring.soft_cap is not None:
            logits = scoring.soft_cap * torch.tanh(logits / scoring.soft_cap)
        if scoring.bias is not None:
            logits = logits + scoring.bias.to(wide)
        mask = seen.explicit(T, S, q.device)
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        weights, total = _softmax(logits, scoring.sinks)
        out = weights.view(B, K, H // K * T, S) @ v.to(wide).transpose(1, 2)  # (B, K, H/K T, N)
    return out.view(B, H, T, v.shape[3]).transpose(1, 2).to(q.dtype), total


def _softmax(logits: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights (B, H, T, S) and log-sum-exp (B, H, T); a row without keys has weights of zero."""
    total = logits.logsumexp(-1)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(total.dtype)[:, None])
    weights = torch.exp(logits - total.masked_fill(total == -math.inf, 0.0)[..., None])
    return weights, total


def attend_naively(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scoring: Scoring) -> Tensor:
    """The definition, one query of one head at a time; `mask` is (B, T, S). For tests."""
    scale = q.shape[3] ** -0.5 if scoring.scale is None else scoring.scale
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    for b, t, h in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        at = mask[b, t].nonzero()[:, 0]
        key = h // (q.shape[2] // k.shape[2])
        logits = k[b, at, key] @ q[b, t, h] * scale
        if scoring.soft_cap is not None:
            logits = scoring.soft_cap * torch.tanh(logits / scoring.soft_cap)
        if scoring.bias is not None:
            logits = logits + scoring.bias[b % scoring.bias.shape[0], h, t, at]
        sink = 0.0 if scoring.sinks is None else scoring.sinks[h].exp()
        if len(at):
            out[b, t, h] = logits.exp() @ v[b, at, key] / (logits.exp().sum() + sink)
    return out
