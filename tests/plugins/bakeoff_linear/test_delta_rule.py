"""The delta rule by chunks and by steps against the recurrence, against transformers, and by hand."""

import pytest
import torch
from bakeoff_linear.correction import unit_lower_inverse
from bakeoff_linear.delta_rule import delta_rule, delta_rule_naive, delta_rule_step
from torch.nn import functional as F
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

B, G, H, N, P = 2, 2, 4, 5, 3
KINDS = ["none", "head", "channel"]


def given(T, decay, dtype=torch.float64, seed=0):
    """q, k, v, beta, and log decays."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(B, T, *shape, generator=g, dtype=dtype)

    q, k, v, beta = normal(G, N), F.normalize(normal(G, N), dim=-1), normal(H, P), normal(H).sigmoid() * 2
    log_a = {"none": [], "head": [F.logsigmoid(normal(H))], "channel": [F.logsigmoid(normal(H, N))]}[decay]
    return [t.detach().requires_grad_() for t in (q, k, v, beta, *log_a)]


def start(dtype=torch.float64):
    return torch.randn(B, H, P, N, generator=torch.Generator().manual_seed(9), dtype=dtype).requires_grad_()


def both(values, state, segments, chunk):
    """Outputs, final state and gradients of the chunked form and of the recurrence."""
    results = []
    for form in (lambda *a, **k: delta_rule(*a, chunk=chunk, **k), delta_rule_naive):
        y, after = form(*values, state=state, segments=segments)
        weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
        loss = (y * weight).sum() + (0 if after is None else after.sin().sum())
        inputs = [*values, *([] if state is None else [state])]
        grads = torch.autograd.grad(loss, inputs, materialize_grads=True)  # no decay bears on a first token
        results.append(([y] if after is None else [y, after], grads))
    return results


def segments_of(T):
    starts = torch.zeros(B, T, dtype=torch.long)
    starts[0, 0], starts[0, T // 3], starts[1, T // 2], starts[1, T - 1] = 1, 1, 1, 1
    return starts.cumsum(1)


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("decay", KINDS)
def test_every_chunk_size_equals_the_recurrence(T, packed, continued, decay):
    values, state = given(T, decay), start() if continued else None
    segments = segments_of(T) if packed else None
    for chunk in (1, 8, 64):
        (fast, fast_grads), (slow, slow_grads) = both(values, state, segments, chunk)
        for a, b in zip((*fast, *fast_grads), (*slow, *slow_grads), strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_what_a_document_has_forgotten_does_not_reach_the_next(decay):
    *values, log_a = given(31, decay)
    strong = (log_a.detach() * 1e4).requires_grad_()  # beside tokens of the last document, e to a number over 709
    (fast, fast_grads), (slow, slow_grads) = both([*values, strong], start(), segments_of(31), 32)
    for a, b in zip((*fast, *fast_grads), (*slow, *slow_grads), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
@pytest.mark.parametrize("decay", KINDS)
def test_steps_equal_the_whole(T, decay):
    values, state, segments = given(T, decay), start(), segments_of(T)
    whole, after = delta_rule(*values, chunk=16, state=state, segments=segments)
    held, rows, before = state, [], torch.zeros(B, 1, dtype=torch.long)
    for t in range(T):
        here = slice(t, t + 1)
        began = segments[:, here] - before
        y, held = delta_rule_step(*(v[:, here] for v in values), state=held, segments=began)
        before = segments[:, here]
        rows.append(y)
    torch.testing.assert_close(torch.cat(rows, 1), whole, atol=1e-11, rtol=0)
    torch.testing.assert_close(held, after, atol=1e-11, rtol=0)


@pytest.mark.parametrize("T", [1, 17, 70])
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_equals_the_recurrences_of_transformers(T, decay):
    q, k, v, beta, log_a = given(T, decay, torch.float32)
    state = start(torch.float32)
    named = {"initial_state": state.mT, "output_final_state": True}
    y, after = delta_rule(q * N**-0.5, k, v, beta, log_a, state=state, chunk=16)
    q, k = (t.repeat_interleave(H // G, 2) for t in (q, k))
    if decay == "head":
        theirs = [torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule]
        found = [form(q, k, v, g=log_a, beta=beta, **named) for form in theirs]
    else:
        found = [recurrent_kimi_delta_attention(q, k, v, log_a, beta, **named)]
    for expected, held in found:
        torch.testing.assert_close(y, expected, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(after, held.mT, atol=2e-5, rtol=1e-4)


def one(*values):
    """(1, T, 1) of numbers."""
    return torch.tensor(values, dtype=torch.float64)[None, :, None]


@pytest.mark.parametrize("form", [delta_rule, delta_rule_naive, delta_rule_step])
def test_the_state_decays_before_it_is_corrected(form):
    state = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    half = one(0.5).log()
    for log_a in (half, half[..., None]):
        y, after = form(one(1.0)[..., None], one(1.0)[..., None], one(2.0)[..., None], one(0.5), log_a, state=state)
        # 1 decays to 0.5, and half of the difference to 2 is written
        assert y.item() == pytest.approx(1.25, abs=1e-15)
        assert after.item() == pytest.approx(1.25, abs=1e-15)


def test_a_full_write_is_read_back_and_overwrites():
    values = given(6, "none")
    _, k, v, _ = values
    ones = torch.ones(B, 6, H, dtype=k.dtype)
    y, _ = delta_rule(k, k, v, ones)
    torch.testing.assert_close(y, v, atol=1e-12, rtol=0)
    again = k[:, :1].expand(-1, 6, -1, -1)
    y, after = delta_rule(again, again, v, ones, state=torch.zeros_like(start()))
    torch.testing.assert_close(y, v, atol=1e-12, rtol=0)
    found = (after @ k[:, 0].repeat_interleave(H // G, 1)[..., None])[..., 0]
    torch.testing.assert_close(found, v[:, -1], atol=1e-12, rtol=0)


def gates(shape, seed=4):
    choice = torch.randint(3, shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor([-1e-3, -1.0, -20.0])[choice]


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_strong_gates_in_float32(T, chunk, decay):
    q, k, v, beta, log_a = given(T, decay, torch.float32)
    values, state = [q, k, v, beta, gates(log_a.shape).requires_grad_()], start(torch.float32)
    (fast, fast_grads), _ = both(values, state, None, chunk)
    wide = [t.detach().double().requires_grad_() for t in values]
    _, (slow, slow_grads) = both(wide, state.detach().double().requires_grad_(), None, chunk)
    for a, b in zip((*fast, *fast_grads), (*slow, *slow_grads), strict=True):
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_decay_to_nothing_is_a_fresh_start(decay):
    q, k, v, beta, log_a = given(30, decay)
    log_a = torch.zeros_like(log_a)
    log_a[:, [11, 12]] = -1000.0
    values = [q, k, v, beta, log_a.requires_grad_()]
    y, _ = delta_rule(*values, chunk=16)
    alone, _ = delta_rule(*(t[:, 12:] for t in values), chunk=16)
    torch.testing.assert_close(y[:, 12:], alone, atol=1e-11, rtol=0)
    grads = torch.autograd.grad(y.square().sum(), values)
    assert all(torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("Q", [1, 2, 4, 64])
def test_the_inverse_of_reflections_is_exact(Q):
    # writes of strength 2 under one key turn it around again and again: the worst case for powers of M
    M = torch.full((3, Q, Q), 2.0).tril(-1)
    expected = torch.linalg.inv(torch.eye(Q, dtype=torch.float64) + M.double())
    torch.testing.assert_close(unit_lower_inverse(M).double(), expected, atol=1e-6, rtol=0)


def test_no_tokens_leave_the_state_as_it_is():
    state = start()
    y, after = delta_rule(*given(0, "head"), state=state)
    assert y.shape == (B, 0, H, P)
    assert after is state
