import math

import pytest
import torch
from bakeoff.interfaces import Sequence
from bakeoff.parts.attention.band import Band, BandOfKeys
from bakeoff.parts.attention.functional import Scoring, Visible, attend, attend_explicitly, attend_naively
from bakeoff.parts.attention.masks import VisibleKeys


def some(T=11, S=11, H=4, K=2, N=8, B=2, dtype=torch.float64):
    torch.manual_seed(1)
    shapes = ((B, T, H, N), (B, S, K, N), (B, S, K, N))
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
        "all": Scoring(scale=1.3, bias=bias, soft_cap=2.0, sinks=sinks),
    }


def gradients(out, inputs):
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weights).sum(), inputs)


def same(actual, expected, inputs):
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-10)
    for ours, theirs in zip(gradients(actual, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-9)


def leaves(tensors, scoring):
    return [*tensors, *(x for x in (scoring.bias, scoring.sinks) if x is not None)]


@pytest.mark.parametrize("name", scorings())
@pytest.mark.parametrize("explicitly", [False, True])
def test_attention_is_its_definition(name, explicitly):
    q, k, v = some()
    scoring = scorings()[name]
    mask = torch.rand(2, 1, 11, 11) < 0.6
    mask[:, :, 3] = False  # a query that sees nothing
    expected = attend_naively(q, k, v, mask[:, 0], scoring)
    actual, _ = (attend_explicitly if explicitly else attend)(q, k, v, Visible(mask), scoring)
    same(actual, expected, leaves((q, k, v), scoring))
    assert (actual[:, 3] == 0).all()


@pytest.mark.parametrize("name", scorings())
def test_the_kernels_causality_is_the_mask(name):
    q, k, v = some()
    scoring = scorings()[name]
    mask = torch.ones(11, 11, dtype=torch.bool).tril()
    expected = attend_naively(q, k, v, mask.expand(2, -1, -1), scoring)
    same(attend(q, k, v, Visible(None, causal=True), scoring)[0], expected, leaves((q, k, v), scoring))


@pytest.mark.parametrize("name", scorings(T=150, S=150))
@pytest.mark.parametrize(("T", "window"), [(150, 1), (150, 5), (97, 33), (150, 64), (150, 101)])
def test_a_band_is_the_masked_square(name, T, window):
    q, k, v = some(T=T, S=T)
    scoring = scorings(T=T, S=T)[name]
    sequence = Sequence(torch.zeros(2, T, dtype=torch.long))
    band, seen = BandOfKeys(window, shortest=2).derive(sequence), VisibleKeys(window).derive(sequence)
    assert isinstance(band, Band)
    expected, total = seen.attend(q, k, v, scoring)
    actual, ours = band.attend(q, k, v, scoring)
    same(actual, expected, leaves((q, k, v), scoring))
    if total is not None:
        torch.testing.assert_close(ours, total)


def test_a_band_honours_documents_and_padding():
    q, k, v = some(T=70, S=70, B=3)
    documents = torch.tensor([[0] * 70, [0] * 40 + [1] * 30, [4] * 3 + [9] * 67])
    real = torch.ones(3, 70, dtype=torch.bool)
    real[0, :37], real[1, 60:] = False, False
    sequence = Sequence(torch.zeros(3, 70, dtype=torch.long), documents=documents, real=real)
    band, seen = BandOfKeys(5, shortest=2).derive(sequence), VisibleKeys(5).derive(sequence)
    assert isinstance(band, Band)
    same(band.attend(q, k, v, Scoring())[0][real], seen.attend(q, k, v, Scoring())[0][real], [q, k, v])


def test_padding_between_real_tokens_takes_the_mask():
    real = torch.ones(1, 80, dtype=torch.bool)
    real[0, 5:75] = False
    assert isinstance(
        BandOfKeys(4, shortest=2).derive(Sequence(torch.zeros(1, 80, dtype=torch.long), real=real)), Visible
    )


def test_each_group_of_query_heads_reads_its_own_key_head():
    q, k = torch.zeros(1, 1, 4, 1), torch.zeros(1, 1, 2, 1)
    v = torch.tensor([10.0, 20.0]).view(1, 1, 2, 1)
    for attention in (attend, attend_explicitly):
        out, _ = attention(q, k, v, Visible(None), Scoring())
        assert out.flatten().tolist() == [10, 10, 20, 20]


@pytest.mark.parametrize("name", scorings(T=2, S=2))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_without_keys_is_zero_and_spoils_no_gradient(name, dtype):
    q, k, v = some(T=2, S=2, B=1, dtype=dtype)
    scoring = scorings(T=2, S=2)[name]
    mask = torch.tensor([[False, False], [True, True]])[None, None]
    out, _ = attend(q, k, v, Visible(mask), scoring)
    assert (out[:, 0] == 0).all()
    assert out.isfinite().all()
    for gradient in gradients(out, leaves((q, k, v), scoring)):
        assert gradient.isfinite().all()


def test_log_sum_exp_is_that_of_the_logits_and_the_sink():
    q = torch.zeros(1, 1, 2, 4)
    k = v = torch.zeros(1, 3, 2, 4)
    _, total = attend_explicitly(q, k, v, Visible(None), Scoring(sinks=torch.tensor([0.0, math.log(2.0)])))
    torch.testing.assert_close(total[0, :, 0].exp(), torch.tensor([4.0, 5.0]))


@pytest.mark.parametrize("T", [1, 6])
@pytest.mark.parametrize("seen", [Visible(None), Visible(torch.rand(2, 1, 1, 6) < 0.7)], ids=["all", "masked"])
def test_sinks_of_few_queries_are_their_definition(T, seen):
    q, k, v = some(T=T, S=6)
    scoring = Scoring(sinks=torch.randn(4, dtype=torch.float64, requires_grad=True))
    mask = torch.ones(2, T, 6, dtype=torch.bool) if seen.mask is None else seen.mask[:, 0].expand(2, T, 6)
    expected = attend_naively(q, k, v, mask, scoring)
    same(attend(q, k, v, seen, scoring)[0], expected, leaves((q, k, v), scoring))


def test_sinks_take_a_gradient_of_any_layout():
    q, k, v = some()
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    causal = Visible(None, causal=True)
    ours, theirs = (form(q, k, v, causal, Scoring(sinks=sinks))[0] for form in (attend, attend_explicitly))
    layouts = {"expanded": torch.ones(()).expand_as(ours), "turned": torch.randn(8, 4, 11, 2).permute(3, 2, 1, 0)}
    for name, grad in layouts.items():
        inputs = (q, k, v, sinks)
        for a, b in zip(*(torch.autograd.grad(y, inputs, grad.double(), True) for y in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-9, msg=name)


def test_sinks_far_from_the_logits_are_finite():
    q, k, v = (x.detach().float().requires_grad_() for x in some())
    sinks = torch.tensor([-1e4, 1e4, 0.0, -0.0], requires_grad=True)
    out, _ = attend(q, k, v, Visible(None, causal=True), Scoring(sinks=sinks))
    without, _ = attend(q, k, v, Visible(None, causal=True), Scoring())
    torch.testing.assert_close(out[:, :, 0], without[:, :, 0])
    assert not out[:, :, 1].any()
    for slope in torch.autograd.grad(out.sum(), (q, k, v, sinks)):
        assert slope.isfinite().all()


def test_a_soft_cap_bounds_logits_and_leaves_small_ones():
    k = torch.tensor([1e6, -1e6, 1e-4]).view(1, 3, 1, 1)
    q, v = torch.ones(1, 1, 1, 1), torch.eye(3).view(1, 3, 1, 3)
    weights, _ = attend_explicitly(q, k, v, Visible(None), Scoring(1.0, None, 30.0))
    logits = weights.flatten().log()
    # differences of capped logits: 30 - (-30), and tanh'(0) = 1
    torch.testing.assert_close(logits[0] - logits[1], torch.tensor(60.0))
    torch.testing.assert_close(logits[0] - logits[2], torch.tensor(30.0 - 1e-4))


def test_a_bias_keeps_float32_logits_in_low_precision():
    q = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    k = torch.zeros(1, 2, 1, 8, dtype=torch.bfloat16)
    v = torch.tensor([0.0, 1.0], dtype=torch.bfloat16).view(1, 2, 1, 1).expand(1, 2, 1, 8)
    bias = torch.tensor([256.0, 257.0]).view(1, 1, 1, 2)  # one number in bfloat16
    out, _ = attend(q, k, v, Visible(None), Scoring(bias=bias))
    torch.testing.assert_close(out.flatten()[0].float(), torch.tensor(math.e / (1 + math.e)), atol=3e-3, rtol=0)
