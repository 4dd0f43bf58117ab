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
from torch.nn import functional as F

from bakeoff.parts.attention.functional import Scoring, Visible, attend_explicitly

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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
    heads, scale = _equal_widths(q, k, v, scoring)
    out, total = _forward(*heads, 0.0, seen.causal, attn_mask=_added(seen.mask, q.dtype), scale=scale)
    if seen.mask is not None:
        total = total.masked_fill(~seen.mask.any(-1), -math.inf)
    return out[..., : v.shape[3]].transpose(1, 2), total


def partial_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, seen: Visible, scoring: Scoring
) -> Gradients:
    """What the given keys add to the gradients, where `dout` is the gradient of `out` (B, T, H, P).

    `out` and `total` (B, H, T) are of all parts together, sinks among them.
    """
    total = total.masked_fill(total == -math.inf, 0.0)
    if not _fuses(q, k, v, scoring):
        return _explicit_gradients(dout, q, k, v, out, total, seen, scoring)
    heads, scale = _equal_widths(q, k, v, scoring)
    dout, out = (_widened(x.transpose(1, 2).to(q.dtype), heads[0].shape[3]) for x in (dout, out))
    mask = _added(seen.mask, q.dtype)
    dq, dk, dv = _backward(dout, *heads, out, total, 0.0, seen.causal, attn_mask=mask, scale=scale)
    dq, dk, dv = (dx[..., : x.shape[3]].transpose(1, 2) for dx, x in ((dq, q), (dk, k), (dv, v)))
    return Gradients(dq, dk, dv, None)


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
    """Whether the CPU's kernel, which gives the log-sum-exp, can take the request."""
    alike = q.is_cpu and q.dtype == k.dtype == v.dtype and 0 not in (*q.shape, *k.shape, *v.shape)
    return alike and scoring.soft_cap is None and scoring.bias is None


def _equal_widths(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[tuple[Tensor, Tensor, Tensor], float]:
    """(B, H, T, W), (B, K, S, W) twice, W the wider of N and P, and the scale."""
    width = max(q.shape[3], v.shape[3])
    q_, k_, v_ = (_widened(x.transpose(1, 2), width) for x in (q, k, v))
    return (q_, k_, v_), q.shape[3] ** -0.5 if scoring.scale is None else scoring.scale


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the logits for what is not seen to count for nothing."""
    return None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -math.inf)


def _explicit_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, seen: Visible, scoring: Scoring
) -> Gradients:
    """`partial_gradients` by matrix products, in float32 at least; `total` is finite."""
    (B, T, H, N), (S, K) = q.shape, k.shape[1:3]
    scale = N**-0.5 if scoring.scale is None else scoring.scale
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
