import math

import pytest
import torch
from bakeoff.parts.attention.functional import Scoring, Visible, attend_explicitly, attend_naively
from bakeoff.parts.attention.partial import add_sinks, attend_partially, merge, partial_gradients, sink_gradients


def some(T=11, S=11, H=4, K=2, N=8, P=8, dtype=torch.float64):
    torch.manual_seed(1)
    shapes = ((2, T, H, N), (2, S, K, N), (2, S, K, P))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def scorings(T=11, S=11, H=4):
    torch.manual_seed(2)
    bias, sinks = torch.randn(1, H, T, S, dtype=torch.float64), torch.randn(H, dtype=torch.float64)
    return {
        "plain": Scoring(),
        "scale": Scoring(scale=0.7),
        "bias": Scoring(bias=bias.requires_grad_()),
        "soft_cap": Scoring(soft_cap=1.5),
        "sinks": Scoring(sinks=sinks.requires_grad_()),
        "all": Scoring(1.3, bias, 2.0, sinks),
    }


def cut(scoring, keys):
    """The scoring of some of the keys."""
    return scoring if scoring.bias is None else scoring._replace(bias=scoring.bias[..., keys])


def in_parts(q, k, v, mask, scoring, parts):
    """Attention by parts of the keys, and its gradients for a gradient of `out` that is not constant."""
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    total = q.new_full((q.shape[0], q.shape[2], q.shape[1]), -math.inf)
    pieces = [(keys, k[:, keys], v[:, keys], Visible(mask[..., keys]), cut(scoring, keys)) for keys in parts]
    for _, *piece in pieces:
        out, total = merge(out, total, *attend_partially(q, *piece))
    if scoring.sinks is not None:
        out, total = add_sinks(out, total, scoring.sinks)
    dout = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    gradients = [torch.zeros_like(x) for x in (q, k, v)]
    by_bias = None if scoring.bias is None else torch.zeros_like(scoring.bias)
    for keys, k_, v_, seen, score in pieces:
        dq, dk, dv, dbias = partial_gradients(dout, q, k_, v_, out, total, seen, score)
        gradients[0] += dq
        gradients[1][:, keys] += dk
        gradients[2][:, keys] += dv
        if by_bias is not None:
            by_bias[..., keys] += dbias
    by_sinks = None if scoring.sinks is None else sink_gradients(dout, out, total, scoring.sinks)
    return out, total, [x for x in (*gradients, by_bias, by_sinks) if x is not None]


def expected(q, k, v, mask, scoring):
    out = attend_naively(q, k, v, mask[:, 0].expand(q.shape[0], -1, -1), scoring)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    inputs = [x for x in (q, k, v, scoring.bias, scoring.sinks) if x is not None]
    return out, torch.autograd.grad((out * weights).sum(), inputs)


def same(actual, correct):
    torch.testing.assert_close(actual[0], correct[0], atol=1e-12, rtol=0)
    assert len(actual[2]) == len(correct[1])
    for ours, theirs in zip(actual[2], correct[1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", scorings())
@pytest.mark.parametrize("parts", [[slice(0, 11)], [slice(0, 1), slice(1, 8), slice(8, 11)]])
def test_parts_of_the_keys_merge_to_attention_over_all(name, parts):
    q, k, v = some()
    mask = torch.rand(2, 1, 11, 11) < 0.5
    mask[:, :, 3] = False  # a query that sees nothing, and one that sees one part only
    mask[:, :, 4, 1:] = False
    with torch.no_grad():
        actual = in_parts(q, k, v, mask, scorings()[name], parts)
    same(actual, expected(q, k, v, mask, scorings()[name]))
    if scorings()[name].sinks is None:
        assert (actual[0][:, 3] == 0).all()
        assert (actual[1][:, :, 3] == -math.inf).all()


@pytest.mark.parametrize(("N", "P"), [(8, 4), (4, 8), (6, 1)])
@pytest.mark.parametrize("K", [1, 2, 4])
def test_values_of_another_width_and_all_groupings(N, P, K):
    q, k, v = some(N=N, P=P, K=K)
    mask = torch.ones(1, 1, 11, 11, dtype=torch.bool).tril()
    with torch.no_grad():
        actual = in_parts(q, k, v, mask, Scoring(), [slice(0, 5), slice(5, 11)])
    same(actual, expected(q, k, v, mask, Scoring()))


@pytest.mark.parametrize("name", scorings())
def test_the_kernels_causality_is_the_mask(name):
    q, k, v = some()
    scoring = scorings()[name]._replace(sinks=None)
    mask = torch.ones(1, 1, 11, 11, dtype=torch.bool).tril()
    with torch.no_grad():
        out, total = attend_partially(q, k, v, Visible(None, causal=True), scoring)
        dout = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        gradients = partial_gradients(dout, q, k, v, out, total, Visible(None, causal=True), scoring)
    same((out, total, [x for x in gradients if x is not None]), expected(q, k, v, mask, scoring))
    torch.testing.assert_close(total, attend_explicitly(q, k, v, Visible(mask), scoring)[1], atol=1e-12, rtol=0)


def test_merged_by_hand():
    def part(value, total):
        return torch.full((1, 1, 1, 1), value), torch.full((1, 1, 1), total)

    out, total = merge(*part(1.0, 0.0), *part(3.0, 200.0))
    assert (out.item(), total.item()) == (3, 200)
    out, total = merge(*part(3.0, 200.0), *part(1.0, 0.0))
    assert (out.item(), total.item()) == (3, 200)
    out, total = merge(*part(1.0, 5.0), *part(3.0, 5.0))
    assert out.item() == 2
    assert total.item() == pytest.approx(5 + math.log(2))
    out, total = merge(*part(0.0, -math.inf), *part(0.0, -math.inf))
    assert (out.item(), total.item()) == (0, -math.inf)
    out, total = merge(*part(0.0, -math.inf), *part(7.0, -3.0))
    assert (out.item(), total.item()) == (7, -3)


def test_parts_of_bfloat16_are_merged_in_float32():
    q, k, v = some(dtype=torch.bfloat16)
    with torch.no_grad():
        out, total = attend_partially(q, k, v, Visible(None), Scoring())
        assert total.dtype == torch.float32
        merged, both = merge(out, total, out, total)
        assert merged.dtype == both.dtype == torch.float32
        gradients = partial_gradients(out, q, k, v, merged, both, Visible(None), Scoring())
    assert {x.dtype for x in gradients if x is not None} == {torch.bfloat16}


@pytest.mark.parametrize("scoring", [Scoring(), Scoring(soft_cap=2.0)])
def test_no_keys_at_all(scoring):
    q, k, v = some(S=0)
    with torch.no_grad():
        out, total = attend_partially(q, k, v, Visible(None), scoring)
        gradients = partial_gradients(q, q, k, v, out, total, Visible(None), scoring)
    assert (out == 0).all()
    assert (total == -math.inf).all()
    assert (gradients.q == 0).all()
    assert gradients.k.shape == k.shape
