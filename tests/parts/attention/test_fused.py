"""CUDA's kernel is called as its schema says: tried with a stand-in for it that computes by the definition."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from bakeoff.parts.attention import fused
from torch import Tensor

# A kernel's positional arguments, as torch documents them.
_FORWARD = torch.ops.aten._efficient_attention_forward.default._schema
_BACKWARD = torch.ops.aten._efficient_attention_backward.default._schema


def weights(query: Tensor, key: Tensor, bias: Tensor | None, custom_mask_type: int, scale: float) -> Tensor:
    logits = torch.einsum("bthn,bshn->bhts", query, key) * scale
    if bias is not None:
        assert bias.shape == logits.shape
        assert bias.stride(-1) == 1
        assert bias.stride(2) % 8 == 0
        logits = logits + bias
    if custom_mask_type == 1:
        logits = logits.masked_fill(~torch.ones(logits.shape[2:], dtype=torch.bool).tril(), -math.inf)
    return logits


def forward(
    query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, custom_mask_type,
    compute_log_sumexp=False, *, scale=None, seqlen_k=None, window_size=None,
):  # fmt: skip
    assert query.shape[2] == key.shape[2] == value.shape[2]
    assert compute_log_sumexp
    logits = weights(query, key, bias, custom_mask_type, scale)
    total = logits.logsumexp(-1)
    out = torch.einsum("bhts,bshp->bthp", (logits - total[..., None]).exp(), value)
    padded = torch.nn.functional.pad(total, (0, -total.shape[2] % 32), value=math.nan)
    return out, padded, None, None, query.shape[1], key.shape[1]


def backward(
    grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, logsumexp,
    dropout_p, philox_seed, philox_offset, custom_mask_type, bias_requires_grad, *, scale=None, num_splits_key=None,
    window_size=None, shared_storage_dqdkdv=False,
):  # fmt: skip
    assert logsumexp.shape[2] % 32 == 0
    assert (max_seqlen_q, max_seqlen_k) == (query.shape[1], key.shape[1])
    total = logsumexp[:, :, : query.shape[1], None]
    p = (weights(query, key, bias, custom_mask_type, scale) - total).exp()
    delta = (grad_out_ * out).sum(-1).transpose(1, 2)[..., None]
    ds = p * (torch.einsum("bthp,bshp->bhts", grad_out_, value) - delta) * scale
    dq, dk = torch.einsum("bhts,bshn->bthn", ds, key), torch.einsum("bhts,bthn->bshn", ds, query)
    return dq, dk, torch.einsum("bhts,bthp->bshp", p, grad_out_), None


@pytest.mark.parametrize(("stand_in", "schema"), [(forward, _FORWARD), (backward, _BACKWARD)])
def test_the_stand_in_takes_what_the_kernel_takes(stand_in, schema):
    assert [argument.name for argument in schema.arguments] == list(inspect.signature(stand_in).parameters)


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (False, True), (True, False)])
def test_cuda_gives_what_a_cpu_gives(monkeypatch, causal, masked):
    monkeypatch.setattr(fused, "_on_cuda", forward)
    monkeypatch.setattr(fused, "_on_cuda_backward", backward)
    generator = torch.Generator().manual_seed(3)
    T, S = 13, 13 if causal else 21
    q, k, v, dout = (
        torch.randn(2, n, heads, width, generator=generator, dtype=torch.float64)
        for n, heads, width in ((T, 4, 12), (S, 2, 12), (S, 2, 20), (T, 4, 20))
    )
    mask = None
    if masked:
        mask = torch.rand(2, 1, T, S, generator=generator) < 0.6
        mask[..., 0] = True
    scale = 0.3
    wanted, given = (way(q, k, v, mask, causal, scale) for way in (fused.fused_forward, fused.cuda_forward))
    for one, other in zip(wanted, given, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)
    gradients = [
        way(dout, q, k, v, *wanted, mask, causal, scale) for way in (fused.fused_backward, fused.cuda_backward)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)
