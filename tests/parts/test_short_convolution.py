"""The short convolution against torch's, its naive twin, and sums of ones that can be done by hand."""

from pathlib import Path

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.spans import ORDERS
from bakeoff.interfaces.state import fork, select
from bakeoff.parts.short_convolution import (
    ShortConvolution,
    convolution_step,
    next_tail,
    short_convolution,
    short_convolution_naive,
)
from bakeoff.testing.ranks import shared_ranks
from torch.nn import functional as F

CASES = Path(__file__).with_name("cases_of_short_convolution.py")


def build(channels=1, width=4, ones=True, **arguments):
    part = ShortConvolution(
        LayerContext(d_model=8, vocab_size=2, max_length=64), channels=channels, width=width, **arguments
    )
    initialise(part, seed=0)
    if ones:
        with torch.no_grad():
            part.weight.fill_(1.0)
            if part.bias is not None:
                part.bias.zero_()
    return part.double()


def run(part, x, state=None, past=None, **described):
    """Outputs, state and past of one call."""
    sequence = Sequence(torch.zeros(x.shape[:2], dtype=torch.long), past=past, **described)
    result = part(x, sequence, state)
    return result.y, result.state, None if past is None else past.advance(sequence)


def ones(*lengths, batch=1):
    return torch.ones(batch, sum(lengths), 1, dtype=torch.float64)


def begin(part, batch=1):
    return part.empty_state(batch, 64, torch.float64), Past(batch, 64)


def test_six_ones_at_once_and_as_three_and_three():
    part = build()
    assert run(part, ones(6))[0].flatten().tolist() == [1, 2, 3, 4, 4, 4]
    first, state, past = run(part, ones(3), *begin(part))
    second, state, past = run(part, ones(3), state, past)
    assert first.flatten().tolist() == [1, 2, 3]
    assert second.flatten().tolist() == [4, 4, 4]


def test_documents_do_not_see_each_other():
    documents = torch.tensor([[7, 7, 7, 9, 9]])
    assert run(build(), ones(5), documents=documents)[0].flatten().tolist() == [1, 2, 3, 1, 2]


def test_a_document_that_begins_in_a_later_call():
    part = build()
    _, state, past = run(part, ones(3), *begin(part), documents=torch.tensor([[7, 7, 7]]))
    same, other = fork(state), fork(state)
    y, _, _ = run(part, ones(2), same, past, documents=torch.tensor([[7, 7]]))
    assert y.flatten().tolist() == [4, 4]
    y, after, past = run(part, ones(2), other, past, documents=torch.tensor([[9, 9]]))
    assert y.flatten().tolist() == [1, 2]
    assert after.flatten().tolist() == [0, 1, 1]
    y, _, _ = run(part, ones(1), after, past, documents=torch.tensor([[9]]))
    assert y.flatten().tolist() == [3]


def test_a_start_in_a_single_token_call_forgets_the_tail():
    part = build()
    _, state, past = run(part, ones(3), *begin(part), documents=torch.tensor([[7, 7, 7]]))
    y, after, _ = run(part, ones(1), state, past, documents=torch.tensor([[9]]))
    assert y.item() == 1
    assert after.flatten().tolist() == [0, 0, 1]


def test_a_prompt_shorter_than_the_kernel():
    state = run(build(), ones(2), *begin(build()))[1]
    assert state.flatten().tolist() == [0, 1, 1]


@pytest.mark.parametrize("prompt", [1, 2, 3, 4, 5])
def test_prompts_of_any_length_then_single_tokens(prompt):
    part = build(channels=3, ones=False)
    x = torch.randn(2, prompt + 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state, past = begin(part, 2)
    y, state, past = run(part, x[:, :prompt], state, past)
    ys = [y]
    for t in range(prompt, prompt + 5):
        y, state, past = run(part, x[:, t : t + 1], state, past)
        ys.append(y)
    torch.testing.assert_close(torch.cat(ys, 1), run(part, x)[0], atol=1e-12, rtol=0)


def test_left_padding_is_silent_and_not_kept():
    real = torch.tensor([[False, False, True, True]])
    part = build()
    y, state, _ = run(part, 5 * ones(4), *begin(part), real=real)
    assert y.flatten().tolist()[2:] == [5, 10]
    assert state.flatten().tolist() == [0, 5, 5]


def test_right_padding_leaves_the_last_real_inputs():
    part = build()
    x = torch.arange(1.0, 6, dtype=torch.float64)[None, :, None].expand(3, -1, -1)
    real = torch.arange(5)[None] < torch.tensor([5, 2, 0])[:, None]
    _, state, past = run(part, ones(4, batch=3) * 9, *begin(part, 3))
    _, state, past = run(part, x, state, past, real=real)
    assert state[..., 0].tolist() == [[3, 4, 5], [9, 1, 2], [9, 9, 9]]
    y, _, _ = run(part, ones(1, batch=3), state, past)
    assert y.flatten().tolist() == [13, 13, 28]


@pytest.mark.parametrize("T", [1, 2, 3, 4, 5, 17])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("tailed", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_equals_the_naive_twin_and_its_gradients(T, width, tailed, packed):
    g = torch.Generator().manual_seed(T)
    x, weight, bias, tail = (
        torch.randn(*shape, generator=g, dtype=torch.float64, requires_grad=True)
        for shape in ((2, T, 3), (3, width), (3,), (2, width - 1, 3))
    )
    segments = (torch.rand(2, T, generator=g) < 0.4).long().cumsum(1) if packed else None
    inputs = [x, weight, bias, *([tail] if tailed else [])]
    grad = torch.randn(2, T, 3, generator=g, dtype=torch.float64)
    given = (x, weight, bias, tail if tailed else None, segments)
    y, expected = short_convolution(*given), short_convolution_naive(*given)
    torch.testing.assert_close(y, expected, atol=1e-13, rtol=0)
    mine = torch.autograd.grad((y * grad).sum(), inputs, allow_unused=width == 1)
    theirs = torch.autograd.grad((expected * grad).sum(), inputs, allow_unused=width == 1)
    for a, b in zip(mine[:3], theirs[:3], strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    if tailed and width > 1:
        torch.testing.assert_close(mine[3], theirs[3], atol=1e-12, rtol=0)


@pytest.mark.parametrize("T", [1, 3, 9])
def test_equals_torch_conv1d(T):
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((2, T, 5), (5, 4), (5,)))
    expected = F.conv1d(F.pad(x.transpose(1, 2), (3, 0)), weight[:, None], bias, groups=5).transpose(1, 2)
    torch.testing.assert_close(short_convolution(x, weight, bias), expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("start", [0, 1])
def test_one_step_equals_the_whole(start):
    g = torch.Generator().manual_seed(0)
    x, weight, tail = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((2, 1, 3), (3, 4), (2, 3, 3)))
    segments = torch.full((2, 1), start)
    y, after = convolution_step(x, weight, None, tail, segments)
    torch.testing.assert_close(y, short_convolution_naive(x, weight, None, tail, segments), atol=1e-13, rtol=0)
    torch.testing.assert_close(after, next_tail(tail, x, segments), atol=0, rtol=0)


def test_rows_of_the_state_can_be_chosen_and_forked():
    part = build(channels=2, ones=False)
    x = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, state, past = run(part, x, *begin(part, 3))
    rows = torch.tensor([2, 0, 2])
    y, _, _ = run(part, x[rows, :1], select(state, rows), past.map(lambda t: t[rows]))
    expected, _, _ = run(part, x[:, :1], state, past)
    torch.testing.assert_close(y, expected[rows], atol=0, rtol=0)


def test_cost_is_one_multiply_add_per_tap():
    assert build(channels=6, width=4).flops(10, 99) == 2 * 4 * 6 * 10


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="width is 0"):
        build(width=0)


def test_initial_values_lie_within_the_bound_of_their_fan_in():
    part = ShortConvolution(LayerContext(d_model=8, vocab_size=2, max_length=4), channels=500, width=4)
    initialise(part, seed=0)
    for values in (part.weight, part.bias):
        assert values.abs().max() <= 0.5
        assert values.std().item() == pytest.approx(0.5 / 3**0.5, rel=0.1)


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_that_share_out_tokens_see_across_spans_shorter_than_the_taps_but_not_across_documents(order):
    arguments = {"documents": [3, 3, 3, 3, 3, 3, 5, 5, 5], "expected": [1, 2, 3, 4, 5, 5, 1, 2, 3]}
    shared_ranks(4).run(CASES, "sum_of_the_last", width=5, order=order, **arguments)
