"""Attention over some of the keys, to be merged with attention over others by the log-sum-exp of the logits.

With P_s = exp(l_s - L), l the logits of all keys that a query sees and L their log-sum-exp, the gradient of a logit is
P_s (dout . v_s - dout . out): of any part of the keys it can be told from the whole's `out` and L alone (Dao et al.,
2022, arXiv:2205.14135). These functions are what autograd functions are made of; autograd itself is not to record them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bakeoff.parts.attention.functional import Scoring, Visible, attend_explicitly
from bakeoff.parts.attention.fused import fused_backward, fused_forward, fuses


class Gradients(NamedTuple):
    """Of queries, keys, values and, where there is one, the bias; each of its tensor's shape and type."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None


def attend_partially(q: Tensor, k: Tensor, v: Tensor, seen: Visible, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """`(out, log-sum-exp)`, (B, T, H, P) and (B, H, T), of `q` (B, T, H, N) over `k` (B, S, K, N) and `v` (B, S, K, P).

    The log-sum-exp is float32 or wider. A query that sees none of the keys has zeros and -inf. Sinks are not taken:
    they are a part of their own, see `add_sinks`.
    """
    if not _fuses(q, k, v, scoring):
        return attend_explicitly(q, k, v, seen, scoring._replace(sinks=None))
    out, total = fused_forward(q, k, v, seen.mask, seen.causal, _scale(q, scoring))
    if seen.mask is not None:
        blind = ~seen.mask.any(-1)  # (B or 1, 1, T)
        out, total = out.masked_fill(blind.transpose(1, 2)[..., None], 0.0), total.masked_fill(blind, -math.inf)
    return out, total


def partial_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, seen: Visible, scoring: Scoring
) -> Gradients:
    """What the given keys add to the gradients, where `dout` is the gradient of `out` (B, T, H, P).

    `out` and `total` (B, H, T) are of all parts together, sinks among them.
    """
    total = total.masked_fill(total == -math.inf, 0.0)
    if not _fuses(q, k, v, scoring):
        return _explicit_gradients(dout, q, k, v, out, total, seen, scoring)
    given = seen.mask, seen.causal, _scale(q, scoring)
    return Gradients(*fused_backward(dout, q, k, v, out, total, *given), None)


def merge(out: Tensor, total: Tensor, other: Tensor, other_total: Tensor) -> tuple[Tensor, Tensor]:
    """`(out, log-sum-exp)` over the keys of both parts, (B, T, H, P) and (B, H, T), in the type of the log-sum-exp."""
    both = torch.logaddexp(total, other_total)
    finite = both.masked_fill(both == -math.inf, 0.0)
    share, other_share = (torch.exp(x - finite).transpose(1, 2)[..., None] for x in (total, other_total))
    return out.to(both.dtype) * share + other.to(both.dtype) * other_share, both


def add_sinks(out: Tensor, total: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """`merge` with one more key a head, whose logit is `sinks[h]` (H,) and whose value is zero."""
    return merge(out, total, torch.zeros_like(out), sinks.to(total.dtype)[:, None])


def sink_gradients(dout: Tensor, out: Tensor, total: Tensor, sinks: Tensor) -> Tensor:
    """(H,), where `dout` is the gradient of `out` and `out`, `total` are of all parts together, sinks among them."""
    share = torch.exp(sinks.to(total.dtype)[:, None] - total)  # (B, H, T)
    delta = (dout * out).sum(-1, dtype=total.dtype).transpose(1, 2)
    return -(share * delta).sum((0, 2)).to(sinks.dtype)


def _fuses(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> bool:
    return scoring.soft_cap is None and scoring.bias is None and fuses(q, k, v)


def _scale(q: Tensor, scoring: Scoring) -> float:
    return q.shape[3] ** -0.5 if scoring.scale is None else scoring.scale


def _explicit_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, seen: Visible, scoring: Scoring
) -> Gradients:
    """`partial_gradients` by matrix products, in float32 at least; `total` is finite."""
    (B, T, H, N), (S, K) = q.shape, k.shape[1:3]
    scale = _scale(q, scoring)
    with torch.autocast(q.device.type, enabled=False):
        wide = torch.promote_types(q.dtype, torch.float32)
        queries, grad = (_folded(x.to(wide), K) for x in (q, dout))  # (B, K, H/K T, N or P)
        keys, values = (x.to(wide).transpose(1, 2) for x in (k, v))  # (B, K, S, N or P)
        logits = (queries @ keys.mT * scale).view(B, H, T, S)
        slope = None
        if scoring.soft_cap is not None:
            bent = torch.tanh(logits / scoring.soft_cap)
            logits, slope = scoring.soft_cap * bent, 1 - bent * bent
        if scoring.bias is not None:
            logits = logits + scoring.bias.to(wide)
        mask = seen.explicit(T, S, q.device)
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        weights = torch.exp(logits - total[..., None])
        delta = (dout * out).sum(-1, dtype=wide).transpose(1, 2)[..., None]  # (B, H, T, 1)
        by_logits = weights * ((grad @ values.mT).view(B, H, T, S) - delta)
        by_bias = None if scoring.bias is None else by_logits.sum_to_size(scoring.bias.shape).to(scoring.bias.dtype)
        if slope is not None:
            by_logits = by_logits * slope
        by_logits, weights = (x.view(B, K, H // K * T, S) for x in (by_logits, weights))
        dq = (by_logits @ keys * scale).view(B, H, T, N).transpose(1, 2)
        dk = (by_logits.mT @ queries * scale).transpose(1, 2)
        dv = (weights.mT @ grad).transpose(1, 2)
    return Gradients(dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), by_bias)


def _folded(x: Tensor, heads: int) -> Tensor:
    """(B, T, H, N) -> (B, K, H/K T, N): a group's heads as so many queries of one key head."""
    return x.unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
