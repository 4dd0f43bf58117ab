"""Linear attention against its formula, and its feature maps against theirs."""

import math

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.state import nbytes
from bakeoff.parts.positions.learned import LearnedPosition
from bakeoff_linear import LinearAttention
from bakeoff_linear.feature_maps import FEATURE_MAPS, Taylor, feature_map_called
from bakeoff_linear.linear_attention_scan import linear_attention, linear_attention_naive, linear_attention_step

D = 24


def context(d_model=D):
    return LayerContext(d_model=d_model, vocab_size=50, max_length=128)


def build(**arguments):
    mixer = LinearAttention(context(), **{"n_heads": 4, "chunk": 8, "backend": "torch"} | arguments)
    initialise(mixer, seed=0)
    return mixer.double()


def inputs(T, seed=1):
    return torch.randn(2, T, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(mixer, x, lengths=None):
    """Outputs of consecutive calls through the state, and the state after them; of one call, None."""
    B, T = x.shape[:2]
    past, state = Past(B, T), None if lengths is None else mixer.empty_state(B, T, x.dtype)
    ys, start = [], 0
    for length in lengths or [T]:
        sequence = Sequence(torch.zeros(B, length, dtype=torch.long), past=past)
        y, state, *_ = mixer(x[:, start : start + length], sequence, state)
        past, start = past.advance(sequence), start + length
        ys.append(y)
    return torch.cat(ys, 1), state


def values(T, H=3, d=4, P=5):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(2, T, H, n, generator=g, dtype=torch.float64).requires_grad_() for n in (d, d, P)]


def test_the_normaliser_is_the_sum_of_weights_so_far():
    one = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    k, v = one * torch.tensor([1, 2, 3])[:, None, None], one * torch.tensor([10, 20, 30])[:, None, None]
    phi = feature_map_called("identity", 1)
    expected = [10, 50 / 3, 140 / 6]  # 16.6667, 23.3333
    for chunk in (1, 2, 3):
        y, _ = linear_attention(one, k, v, feature_map=phi, eps=0.0, chunk=chunk)
        assert y.flatten().tolist() == pytest.approx(expected, rel=1e-12)
    state = torch.zeros(1, 1, 2, 1, dtype=torch.float64)
    for t in range(3):
        here = slice(t, t + 1)
        y, state = linear_attention_step(one[:, here], k[:, here], v[:, here], feature_map=phi, eps=0.0, state=state)
        assert y.item() == pytest.approx(expected[t], rel=1e-12)
    assert state.flatten().tolist() == [140, 6]


@pytest.mark.parametrize("name", FEATURE_MAPS)
@pytest.mark.parametrize("normalised", [True, False])
def test_equals_the_masked_matrix_of_weights(name, normalised):
    q, k, v = values(21)
    if name == "identity" and normalised:
        q, k = q.abs(), k.abs()  # a sum of weights near 0 has no digits
    phi, eps = feature_map_called(name, 4), 1e-6 if normalised else None
    weights = (phi.features(q).transpose(1, 2) @ phi.features(k).transpose(1, 2).mT).tril()
    expected = weights @ v.transpose(1, 2)
    if normalised:
        expected = expected / (weights.sum(-1, keepdim=True) + eps)
    y, _ = linear_attention(q, k, v, feature_map=phi, eps=eps, chunk=8)
    torch.testing.assert_close(y, expected.transpose(1, 2), atol=1e-10, rtol=1e-10)
    naive, _ = linear_attention_naive(q, k, v, feature_map=phi, eps=eps)
    torch.testing.assert_close(naive, y, atol=1e-10, rtol=1e-10)


def test_heads_that_change_places_do_so_in_the_output_alone():
    order = torch.tensor([2, 0, 1])
    phi = feature_map_called("elu_plus_one", 4)
    y, _ = linear_attention(*values(9), feature_map=phi, chunk=4)
    permuted, _ = linear_attention(*(t[:, :, order] for t in values(9)), feature_map=phi, chunk=4)
    torch.testing.assert_close(permuted, y[:, :, order], atol=0, rtol=0)


def test_taylor_features_have_the_weights_of_the_exponentials_first_terms():
    phi = Taylor(16)
    assert phi.width == 273
    q, k = torch.randn(2, 1000, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = phi.features(q), phi.features(k)
    assert features[0].shape == (1000, 273)
    s = (q * k).sum(-1) / 4
    expected = 1 + s + s**2 / 2
    torch.testing.assert_close((features[0] * features[1]).sum(-1), expected, atol=1e-12, rtol=1e-12)
    products = (q * k).sum(-1).requires_grad_()
    torch.testing.assert_close(phi.weights(products), expected, atol=1e-12, rtol=1e-12)
    (slope,) = torch.autograd.grad(phi.weights(products).sum(), products)
    torch.testing.assert_close(phi.slope(products.detach()), slope, atol=1e-12, rtol=1e-12)
    given, dphi = q.clone().requires_grad_(), features[1]
    (expected,) = torch.autograd.grad(phi.features(given), given, dphi)
    torch.testing.assert_close(phi.gradient(q, dphi), expected, atol=1e-12, rtol=1e-12)
    far = torch.linspace(-100, 100, 100001, dtype=torch.float64)
    assert phi.weights(far).min() >= 0.5
    assert phi.weights(far).min() == pytest.approx(0.5, abs=1e-6)  # at s = -1


def test_elu_plus_one_is_positive_and_one_at_zero():
    phi = feature_map_called("elu_plus_one", 1)
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)
    assert phi.features(x).tolist() == pytest.approx([math.exp(-2), 1, 4], rel=1e-14)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"feature_map": "taylor", "feature_width": 3}, {"feature_map": "relu"}, {"normalised": False}],
    ids=["elu_plus_one", "taylor", "relu", "not normalised"],
)
def test_single_tokens_equal_the_whole(arguments):
    mixer = build(**arguments)
    for T in (1, 2, 31, 64, 100):
        y, state = run(mixer, inputs(T), [1] * T)
        whole, after = run(mixer, inputs(T), [T])
        torch.testing.assert_close(y, whole, atol=1e-8, rtol=0)
        torch.testing.assert_close(run(mixer, inputs(T))[0], whole, atol=1e-8, rtol=0)
        torch.testing.assert_close(state, after, atol=1e-8, rtol=0)


def test_a_query_that_nothing_answers_reads_zero():
    q, v = -torch.ones(1, 4, 1, 2), torch.ones(1, 4, 1, 3)
    k = q.clone().requires_grad_()
    y, _ = linear_attention(q, k, v, feature_map=feature_map_called("relu", 2))
    assert (y == 0).all()
    assert torch.autograd.grad(y.sum(), k)[0].isfinite().all()


def test_the_state_of_based_has_its_published_size():
    mixer = LinearAttention(context(1024), n_heads=16, feature_map="taylor", feature_width=16)
    state = mixer.empty_state(1, 2048, torch.bfloat16)
    assert state.shape == (1, 16, 64 + 1, 273)  # and a normaliser
    assert nbytes(state) == 16 * 65 * 273 * 4
    assert sum(p.numel() for p in mixer.parameters()) == 2 * 1024 * 256 + 2 * 1024**2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_heads": 5}, "d_model is 24 and n_heads 5"),
        ({"n_heads": 0}, "n_heads is 0"),
        ({"feature_width": 0}, "feature_width 0"),
        ({"chunk": 0}, "chunk is 0"),
        ({"feature_map": "elu"}, "'elu' is none of elu_plus_one, relu, taylor, identity"),
        ({"position": LearnedPosition}, "LearnedPosition rotates no queries and keys"),
    ],
)
def test_sizes_and_names_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
