"""Attention whose softmax has a sink, by the fused kernel of a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def fuses_sinks(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend_with_sinks` can take queries (B, T, H, N), keys (B, S, K, N) and values (B, S, K, P)."""
    return q.is_cpu and q.dtype == k.dtype == v.dtype and k.shape[3] == v.shape[3] and 0 not in (*q.shape, *k.shape)


def attend_with_sinks(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """(B, T, H, N): attention in which head h has one more logit, `sinks[h]`, of a key whose value is zero.

    `mask` (B or 1, 1, T, S) is True where query t sees key s, None for all; `causal`: it sees keys 0 to t.
    """
    H, K = q.shape[2], k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if q.shape[2] == 1 and mask is None:  # a group's heads, as queries of the same keys
        out = _Attention.apply(q.unflatten(1, (K, -1)).squeeze(3), k, v, None, sinks.view(K, -1), False, scale)
        return out.reshape(q.shape).transpose(1, 2)
    if H != K:
        k, v = (x.repeat_interleave(H // K, 1) for x in (k, v))
    if mask is not None:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    return _Attention.apply(q, k, v, mask, sinks[:, None], causal, scale).transpose(1, 2)


class _Attention(torch.autograd.Function):
    """With l the log-sum-exp of a query's logits and s the sink, the softmax's total is t = log(e^l + e^s), and the
    kernel's output shrinks by e^(l - t). Its gradient holds of the shrunken output and of t as it does of those without
    a sink; that of s is -e^(s - t) times the output's product with its own gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor, causal: bool, scale: float | None
    ) -> Tensor:
        out, without = _forward(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        total = torch.logaddexp(without, sinks.to(without.dtype))  # (B, H, T)
        out = out * torch.exp(without - total)[..., None].to(out.dtype)
        ctx.save_for_backward(q, k, v, mask, sinks, out, total)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, sinks, out, total = ctx.saved_tensors
        grad = grad.contiguous()
        by_q, by_k, by_v = _backward(grad, q, k, v, out, total, 0.0, ctx.causal, attn_mask=mask, scale=ctx.scale)
        share = torch.exp(sinks.to(total.dtype) - total)
        by_sinks = -(share * (grad * out).sum(-1, dtype=total.dtype)).sum_to_size(1, *sinks.shape)[0]
        return by_q, by_k, by_v, None, by_sinks.to(sinks.dtype), None, None
