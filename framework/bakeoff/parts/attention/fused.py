"""Fused kernels of attention that give the log-sum-exp, and take one for the gradient: of a CPU, and of CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_on_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_on_cuda = torch.ops.aten._efficient_attention_forward
_on_cuda_backward = torch.ops.aten._efficient_attention_backward

#: CUDA's kernel has log-sum-exps for so many queries at a time, and takes widths and masks in such steps.
_QUERIES, _WIDTH = 32, 8
#: What is added to a logit that is not seen: no logit brings it near, and no difference of two is not a number.
_UNSEEN = -1e30


def fuses(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a kernel takes queries (B, T, H, N), keys (B, S, K, N) and values (B, S, K, P)."""
    alike = q.dtype == k.dtype == v.dtype and 0 not in (*q.shape, *k.shape, *v.shape)
    return alike and (q.is_cpu or (q.is_cuda and q.dtype != torch.float64))


def fused_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """`(out, log-sum-exp)`, (B, T, H, P) and (B, H, T); `mask` (B or 1, 1, T, S) is True where a key is seen.

    Queries that see no key get what no one may use.
    """
    return (_cpu_forward if q.is_cpu else cuda_forward)(q, k, v, mask, causal, scale)


def fused_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, by those of `out`; `out` and `total` may be of more keys than these."""
    backward = _cpu_backward if q.is_cpu else cuda_backward
    return backward(dout.to(q.dtype), q, k, v, out.to(q.dtype), total, mask, causal, scale)


def _cpu_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Any:
    width = max(q.shape[3], v.shape[3])
    heads = (_widened(x, width).transpose(1, 2) for x in (q, k, v))
    out, total = _on_cpu(*heads, 0.0, causal, attn_mask=_added(mask, q.dtype), scale=scale)
    return out.transpose(1, 2)[..., : v.shape[3]], total


def _cpu_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, mask: Any, causal: bool, scale: float
) -> Any:
    width = max(q.shape[3], v.shape[3])
    grad, *heads, given = (_widened(x, width).transpose(1, 2) for x in (dout, q, k, v, out))
    found = _on_cpu_backward(grad, *heads, given, total, 0.0, causal, attn_mask=_added(mask, q.dtype), scale=scale)
    return tuple(dx.transpose(1, 2)[..., : x.shape[3]] for dx, x in zip(found, (q, k, v), strict=True))


def cuda_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Any:
    """`fused_forward` by CUDA's kernel."""
    q_, k_, v_ = _for_cuda(q, k, v)
    given = q_, k_, v_, _bias(mask, q_, k_), None, None, None, None, 0.0, int(causal), True
    out, total, *_ = _on_cuda(*given, scale=scale)
    return out[..., : v.shape[3]], total[:, :, : q.shape[1]]


def cuda_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, mask: Any, causal: bool, scale: float
) -> Any:
    """`fused_backward` by CUDA's kernel."""
    q_, k_, v_ = _for_cuda(q, k, v)
    grad, given = (_widened(x, v_.shape[3]) for x in (dout, out))
    padded = F.pad(total, (0, -total.shape[2] % _QUERIES), value=torch.inf)
    seed = torch.zeros((), dtype=torch.long, device=q.device)  # of a dropout of 0
    sizes = q.shape[1], k.shape[1], padded, 0.0, seed, seed, int(causal), False
    dq, dk, dv, _ = _on_cuda_backward(grad, q_, k_, v_, _bias(mask, q_, k_), given, None, None, *sizes, scale=scale)
    return dq[..., : q.shape[3]], _of_groups(dk, k), _of_groups(dv, v)


def _for_cuda(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Widths that the kernel takes, and keys and values once a query head."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (_widened(x, -(-x.shape[3] // _WIDTH) * _WIDTH) for x in (q, k, v))
    return (q, k, v) if group == 1 else (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))


def _of_groups(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of `x` (B, S, K, N), of that of its heads once a query head."""
    return grad.unflatten(2, (x.shape[2], -1)).sum(3)[..., : x.shape[3]]


def _bias(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask as a term (B, H, T, S) of the logits, laid out as the kernel takes it."""
    if mask is None:
        return None
    (B, T, H, _), S = q.shape, k.shape[1]
    added = torch.zeros(mask.shape[0], 1, T, -(-S // _WIDTH) * _WIDTH, dtype=q.dtype, device=q.device)
    added = added[..., :S].masked_fill_(~mask, _UNSEEN if q.dtype != torch.float16 else -3e4)
    return added.expand(B, H, T, S)


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
