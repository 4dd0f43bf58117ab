"""What is looked up among past keys: by hand, in blocks of any size, and of equal products the newer."""

import numpy as np
import pytest
import torch
from bakeoff.interfaces import Sequence
from bakeoff_retro import nearest_keys
from bakeoff_retro.nearest_keys import KeysBeyond, largest, look_up, look_up_naively
from torch._subclasses.fake_tensor import FakeTensorMode


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def beyond(T, window, memory=None, **described):
    need = KeysBeyond(window, memory)
    batch = next((value.shape[0] for value in described.values()), 1)
    return Sequence(torch.zeros(batch, T, dtype=torch.long), **described).prepare([need])[need]


def by_hand(q, k, v, allowed, count, scale):
    """Outputs (B, T, H, P) in numpy, from which keys s of row b a query t is `allowed` to look up."""
    q, k, v = (x.detach().numpy() for x in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b, t, h in np.ndindex(*q.shape[:3]):
        key = h // (q.shape[2] // k.shape[2])
        at = [s for s in range(k.shape[1]) if allowed(b, t, s)]
        products = np.array([k[b, s, key] @ q[b, t, h] for s in at])
        best = np.argsort(-products, kind="stable")[:count]
        if len(best):
            weights = np.exp(scale * products[best])
            out[b, t, h] = weights / weights.sum() @ v[b, np.array(at)[best], key]
    return out


@pytest.mark.parametrize(("count", "memory"), [(1, None), (3, None), (3, 4), (99, None), (99, 4)])
def test_equals_numpy_and_the_naive_twin_with_gradients(count, memory):
    q, k, v = random(2, 11, 4, 3).requires_grad_(), random(2, 11, 2, 3, seed=1), random(2, 11, 2, 5, seed=2)
    seen = beyond(11, 3, memory)
    out, found = look_up(q, k, v, seen, count, 0.7)

    def allowed(b, t, s):
        return t - s >= 3 and (memory is None or t - s < 3 + memory)

    np.testing.assert_allclose(out.detach(), by_hand(q, k, v, allowed, count, 0.7), atol=1e-12)
    assert found.tolist() == (torch.arange(11) >= 3)[None, :, None].expand(2, 11, 4).tolist()
    naive, also = look_up_naively(q, k, v, seen, count, 0.7)
    assert torch.equal(found, also)
    probe = random(*out.shape, seed=3)
    slopes = [torch.autograd.grad((y * probe).sum(), q)[0] for y in (out, naive)]
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-12)
    assert float(slopes[0][:, :3].abs().max()) == 0.0


def test_the_gradient_of_queries_is_that_of_finite_differences():
    q, k, v = random(1, 7, 2, 3).requires_grad_(), random(1, 7, 1, 3, seed=1), random(1, 7, 1, 2, seed=2)
    assert torch.autograd.gradcheck(lambda q: look_up(q, k, v, beyond(7, 2), 2, 0.5)[0], (q,))


def test_documents_and_padding_are_not_found():
    documents = torch.tensor([[5] * 6 + [7] * 6, [5] * 12])
    real = torch.tensor([[True] * 12, [True] * 3 + [False] * 2 + [True] * 7])
    q, k, v = random(2, 12, 2, 3), random(2, 12, 2, 3, seed=1), random(2, 12, 2, 3, seed=2)
    index = (real.long().cumsum(1) - 1).clamp_min(0)

    def allowed(b, t, s):
        far = index[b, t] - index[b, s]
        return bool(real[b, s] and documents[b, s] == documents[b, t] and 2 <= far < 2 + 3)

    out, _ = look_up(q, k, v, beyond(12, 2, 3, documents=documents, real=real), 2, 1.0)
    want = by_hand(q, k, v, allowed, 2, 1.0)
    np.testing.assert_allclose(out[real], want[real.numpy()], atol=1e-12)


@pytest.mark.parametrize("numbers", [1, 60, 100, 300])
def test_blocks_of_queries_change_nothing(numbers, monkeypatch):
    q, k, v = random(2, 13, 2, 3).requires_grad_(), random(2, 13, 1, 3, seed=1), random(2, 13, 1, 3, seed=2)

    def both():
        out, found = look_up(q, k, v, beyond(13, 2, 6), 3, 1.0)
        return out, found, torch.autograd.grad((out * random(*out.shape, seed=3)).sum(), q)[0]

    whole = both()
    monkeypatch.setitem(nearest_keys._NUMBERS, "cpu", numbers)
    for one, other in zip(whole, both(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_no_tensor_holds_a_number_per_query_and_key(monkeypatch):
    T, made = 256, []
    products = nearest_keys._products
    monkeypatch.setattr(nearest_keys, "_products", lambda q, k: made.append(products(q, k)) or made[-1])
    monkeypatch.setitem(nearest_keys._NUMBERS, "cpu", 8192)
    q, k, v = random(1, T, 2, 4), random(1, T, 1, 4, seed=1), random(1, T, 1, 4, seed=2)
    look_up(q, k, v, beyond(T, 32), 8, 1.0)
    assert max(scores.numel() for scores in made) <= 8192 < T * T
    assert sum(scores.numel() for scores in made) < 0.6 * 2 * T * T  # what comes later is not multiplied


def test_a_step_can_be_planned_on_shapes_alone():
    with FakeTensorMode():
        q, k, v = torch.empty(2, 9, 4, 3, requires_grad=True), torch.empty(2, 9, 2, 3), torch.empty(2, 9, 2, 5)
        out, _ = look_up(q, k, v, beyond(9, 2), 2, 1.0)
        assert out.shape == (2, 9, 4, 5)
        assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape


def test_of_equal_products_the_newer_is_taken():
    scores = torch.tensor([[1.0, 3.0, 2.0, 2.0, 3.0, 2.0, -torch.inf], [0.0] * 6 + [1.0], [-torch.inf] * 6 + [0.0]])
    index = torch.tensor([[6, 5, 4, 9, 2, 3, 7]])
    values, places = largest(scores, index, 3)
    assert [sorted(row) for row in places[:2].tolist()] == [[1, 3, 4], [0, 3, 6]]
    assert [sorted(row) for row in values.tolist()] == [[2, 3, 3], [0, 0, 1], [-torch.inf, -torch.inf, 0]]
    assert 6 in places[2].tolist()
