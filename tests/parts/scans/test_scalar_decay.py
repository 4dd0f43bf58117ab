"""The chunked form of scalar-decay recurrences against the loop over tokens, and against formulas of papers."""

from pathlib import Path

import pytest
import torch
from bakeoff.parts.scans.scalar_decay import scalar_decay, scalar_decay_naive, scalar_decay_step
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_spans.py")
B, H, P, N = 2, 4, 3, 5


class Squared:
    """`phi(q) . phi(k) = (1 + q . k)^2`, by the 1 + 2 N + N^2 features of the binomial."""

    def features(self, x):
        pairs = (x[..., :, None] * x[..., None, :]).flatten(-2)
        return torch.cat([torch.ones_like(x[..., :1]), 2**0.5 * x, pairs], -1)

    def gradient(self, x, dphi):
        pairs = dphi[..., 1 + N :].unflatten(-1, (N, N))
        return 2**0.5 * dphi[..., 1 : 1 + N] + ((pairs + pairs.mT) @ x[..., None])[..., 0]

    def weights(self, products):
        return (1 + products) ** 2

    def slope(self, products):
        return 2 * (1 + products)


def given(T, G=H, seed=0):
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, T, *s, generator=g, dtype=torch.float64) for s in ((G, N), (G, N), (H, P)))
    return [t.requires_grad_() for t in (q, k, v)]


def log_decays(kind, T):
    g = torch.Generator().manual_seed(7)
    if kind == "none":
        return None
    shape = (H,) if kind == "constant" else (B, T, H)
    return (-torch.rand(shape, generator=g, dtype=torch.float64)).requires_grad_()


def start(width=N):
    g = torch.Generator().manual_seed(9)
    return torch.randn(B, H, P, width, generator=g, dtype=torch.float64).requires_grad_()


def segments_of(T):
    starts = torch.zeros(B, T, dtype=torch.long)
    starts[0, 0], starts[0, T // 3], starts[1, T // 2], starts[1, T - 1] = 1, 1, 1, 1
    return starts.cumsum(1)


def results(form, inputs, **arguments):
    """Outputs, final state and gradients."""
    y, after = form(**arguments)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
    loss = (y * weight).sum() + (0 if after is None else after.sin().sum())
    return [y, *([] if after is None else [after]), *torch.autograd.grad(loss, inputs)]


def agree(found, expected, tolerance=1e-10):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", ["none", "constant", "each token"])
@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_every_chunk_size_equals_the_recurrence(kind, G, continued, packed):
    for T in (1, 2, 31, 64):
        (q, k, v), log_a, state = given(T, G), log_decays(kind, T), start() if continued else None
        arguments = {"q": q, "k": k, "v": v, "log_a": log_a, "state": state}
        arguments["segments"] = segments_of(T) if packed else None
        inputs = [t for t in (q, k, v, log_a, state) if t is not None]
        expected = results(scalar_decay_naive, inputs, **arguments)
        for chunk in (1, 8, 13, 64):
            agree(results(scalar_decay, inputs, **arguments, chunk=chunk), expected)


def test_rates_that_are_not_learned_have_no_gradient_and_do_not_decay_what_fills_up_a_chunk():
    (q, k, v), log_a, state = given(10), log_decays("constant", 10).detach(), start()
    arguments = {"q": q, "k": k, "v": v, "log_a": log_a, "state": state}
    found = results(scalar_decay, [q, k, v, state], **arguments, chunk=4)  # 3 chunks of 4, two tokens too many
    agree(found, results(scalar_decay_naive, [q, k, v, state], **arguments))


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_feature_map_stands_for_its_features(continued, packed):
    for T in (1, 20):
        (q, k, v), state = given(T), start(1 + N + N**2) if continued else None
        segments = segments_of(T) if packed else None
        arguments = {"v": v, "log_a": log_decays("constant", T), "state": state, "segments": segments}
        inputs = [q, k, v, *([state] if continued else [])]
        phi = Squared()
        expected = results(scalar_decay_naive, inputs, q=phi.features(q), k=phi.features(k), **arguments)
        for chunk in (1, 8, 64):
            agree(results(scalar_decay, inputs, q=q, k=k, **arguments, feature_map=phi, chunk=chunk), expected)


@pytest.mark.parametrize("G", [1, 4])
@pytest.mark.parametrize("kind", ["none", "constant", "each token"])
@pytest.mark.parametrize("segments", [None, torch.tensor([[0], [1]])])
def test_one_step_equals_the_recurrence(G, kind, segments):
    (q, k, v), log_a, state = given(1, G), log_decays(kind, 1), start()
    arguments = {"q": q, "k": k, "v": v, "log_a": log_a, "state": state, "segments": segments}
    agree(scalar_decay_step(**arguments), scalar_decay_naive(**arguments), 1e-12)


def test_without_decay_it_is_attention_without_softmax():
    q, k, v = given(20)
    heads = [t.transpose(1, 2) for t in (q, k, v)]
    expected = ((heads[0] @ heads[1].mT).tril() @ heads[2]).transpose(1, 2)
    torch.testing.assert_close(scalar_decay(q, k, v, chunk=8)[0], expected, atol=1e-11, rtol=1e-11)


def test_a_constant_decay_is_the_parallel_form_of_retention():
    (q, k, v), T = given(20), 20
    rates = torch.tensor([0.5, 0.9, 0.96875, 1.0], dtype=torch.float64)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    decay = torch.where(distance >= 0, rates[:, None, None] ** distance, 0)  # (H, T, T)
    heads = [t.transpose(1, 2) for t in (q, k, v)]
    expected = ((heads[0] @ heads[1].mT * decay) @ heads[2]).transpose(1, 2)
    torch.testing.assert_close(scalar_decay(q, k, v, rates.log(), chunk=8)[0], expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
def test_mixed_strong_gates_stay_exact_and_finite_in_float32(T):
    gates = -torch.tensor([1e-3, 1.0, 20.0])
    log_a = gates[torch.randint(3, (B, T, H), generator=torch.Generator().manual_seed(5))]
    exact = [*(t.detach() for t in given(T)), log_a.double()]
    expected = results(naive_of, wanted := [t.requires_grad_() for t in exact], given=wanted)
    for chunk in (16, 64):
        values = [t.detach().float().requires_grad_() for t in exact]
        found = results(chunked_of, values, given=values, chunk=chunk)
        for a, b in zip(found, expected, strict=True):
            assert a.isfinite().all()
            assert (a - b).abs().max() < 1e-4 * b.abs().max().clamp_min(1e-6)


def naive_of(given):
    return scalar_decay_naive(*given)


def chunked_of(given, chunk):
    return scalar_decay(*given, chunk=chunk)


def test_no_tokens_give_none_and_leave_the_state():
    (q, k, v), state = given(0), start()
    y, after = scalar_decay(q, k, v, state=state)
    assert y.shape == (B, 0, H, P)
    assert after is state


@pytest.mark.parametrize(("order", "shared"), [("contiguous", False), ("zigzag", False), ("zigzag", True)])
def test_ranks_that_share_out_tokens_equal_the_loop(order, shared):
    shared_ranks(2).run(CASES, "scalar_decay_equals_whole", order=order, shared=shared)


def test_ranks_that_share_out_tokens_equal_the_loop_at_one_decay_a_head():
    shared_ranks(2).run(CASES, "constant_decay_equals_whole", order="zigzag")
