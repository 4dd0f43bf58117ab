"""Attention with learned logits against `scaled_dot_product_attention`: outputs and all gradients."""

import pytest
import torch
from bakeoff.interfaces import LayerContext
from bakeoff_retro.attending import attend
from bakeoff_retro.relative import RelativeLogits
from torch.nn import functional as F

from tests.plugins.bakeoff_retro.layers_of_retro import numbers


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_softmax_attention(rows, masked, dtype):
    X, Q, K, H, N = 3, 5, 7, 2, 4
    shapes = [(X, Q, H, N), (X, K, H, N), (X, K, H, N), (rows, H, Q, K)]
    given = [numbers(*shape, seed=i).to(dtype).requires_grad_() for i, shape in enumerate(shapes)]
    seen = torch.arange(K).expand(X, -1) < torch.tensor([[7], [4], [1]]) if masked else None
    got = attend(*given, seen)
    assert got.dtype == dtype
    same = [t.detach().double().requires_grad_() for t in given]
    q, k, v = (t.transpose(1, 2) for t in same[:3])
    mask = same[3] if seen is None else same[3].masked_fill(~seen[:, None, None], -torch.inf)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    allowed = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    assert torch.allclose(got.double(), want, atol=allowed, rtol=allowed)
    pulled = numbers(*got.shape, seed=9)
    got.backward(pulled.to(dtype))
    want.backward(pulled)
    for one, other in zip(given, same, strict=True):
        assert one.grad.shape == one.shape
        assert torch.allclose(one.grad.double(), other.grad, atol=3 * allowed, rtol=allowed)


def test_what_sees_no_key_is_finite():
    given = [numbers(1, 2, 1, 4, seed=i).requires_grad_() for i in range(3)]
    y = attend(*given, numbers(1, 1, 2, 2), torch.zeros(1, 2, dtype=torch.bool))
    y.sum().backward()
    assert bool(y.isfinite().all())
    assert all(bool(t.grad.isfinite().all()) for t in given)


@pytest.mark.parametrize(("queries", "keys", "shift"), [(3, 5, 0), (5, 3, 2), (4, 8, 3)])
def test_logits_of_distances_equal_those_of_each_pair(queries, keys, shift):
    logits = RelativeLogits(
        LayerContext(d_model=8, vocab_size=8, max_length=8), n_heads=2, queries=queries, keys=keys, shift=shift
    ).double()
    with torch.no_grad():
        logits.weight.weight.copy_(numbers(*logits.weight.weight.shape))
    weight = logits.weight.weight
    pulled = numbers(2, queries, keys, seed=1)
    one, other = (torch.autograd.grad((made * pulled).sum(), weight)[0] for made in (logits(), logits.naive()))
    assert torch.allclose(logits(), logits.naive(), atol=1e-12)
    assert torch.allclose(one, other, atol=1e-10)
