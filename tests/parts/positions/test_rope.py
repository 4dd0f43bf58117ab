import math

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.positions.rope import RoPE, RotaryTable, rotate, rotate_naively


def context(head_width, **known):
    return LayerContext(d_model=64, vocab_size=8, max_length=64, n_heads=2, head_width=head_width, **known)


def at(*positions):
    return Sequence(torch.zeros(1, len(positions), dtype=torch.long), positions=torch.tensor([positions]))


def angles(width, base, *positions):
    cos, sin = RotaryTable(width, base, interleaved=False).derive(at(*positions))
    assert torch.equal(cos[..., : width // 2], cos[..., width // 2 :])
    assert torch.equal(sin[..., : width // 2], -sin[..., width // 2 :])
    return torch.atan2(sin, cos)[0, :, 0, width // 2 :]


def test_frequencies_are_powers_of_the_base():
    turned = angles(128, 10000.0, 1)[0]
    torch.testing.assert_close(turned[0].item(), 1.0, rtol=1e-6, atol=0)
    torch.testing.assert_close(turned[1].item(), 0.8659643233600653, rtol=1e-6, atol=0)
    torch.testing.assert_close(turned[63].item(), 1.1547819846894582e-4, rtol=1e-6, atol=0)


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_pair_is_a_complex_number_turned(interleaved):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([0, 5, 17])
    theta = 100.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    expected = rotate_naively(x, positions[:, None, None] * theta, interleaved)
    actual = rotate(x, *RotaryTable(8, 100.0, interleaved).derive(at(*positions.tolist())), interleaved)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)  # the table is float32
    weights = torch.randn_like(x)
    ours, theirs = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (actual, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_products_depend_on_distance_only(interleaved):
    rope = RoPE(context(16), interleaved=interleaved)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def product(m, n):
        sequence = at(m, n).prepare(rope.needs())
        turned_q, turned_k = rope.rotate(q.expand(1, 2, 1, 16), k.expand(1, 2, 1, 16), sequence)
        return (turned_q[0, 0] * turned_k[0, 1]).sum()

    torch.testing.assert_close(product(7, 3), product(107, 103), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(product(0, 0), (q * k).sum())
    assert (product(7, 3) - product(7, 4)).abs() > 1e-3


def test_interleaved_is_half_split_of_permuted_channels():
    torch.manual_seed(0)
    x = torch.randn(1, 4, 2, 12)
    halves, pairs = (RotaryTable(12, 10000.0, interleaved).derive(at(0, 1, 2, 3)) for interleaved in (False, True))
    permuted = x.unflatten(-1, (6, 2)).transpose(-1, -2).flatten(-2)
    expected = rotate(permuted, *halves).unflatten(-1, (2, 6)).transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(rotate(x, *pairs, interleaved=True), expected)


def test_a_fraction_leaves_the_last_channels():
    rope = RoPE(context(16), fraction=0.25)
    x = torch.randn(1, 2, 1, 16)
    q, _ = rope.rotate(x, x, at(3, 4).prepare(rope.needs()))
    assert torch.equal(q[..., 4:], x[..., 4:])
    assert (q[..., :4] != x[..., :4]).all()


def test_tables_stay_float32_in_a_bfloat16_model():
    attention = Attention(context(16), n_heads=2, position=RoPE).to(torch.bfloat16)
    positions = torch.arange(4096)[None]
    sequence = Sequence(torch.zeros(1, 4096, dtype=torch.long), positions=positions)
    cos, sin = attention.position.table.derive(sequence)
    assert cos.dtype == sin.dtype == torch.float32
    assert not torch.equal(cos[0, 256], cos[0, 257])
    width = attention.position.table.width
    exact = 4095 * 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    assert (cos[0, 4095, 0, : width // 2] - exact.cos()).abs().max() < 1e-3
    x = torch.randn(1, 4096, 2, width, dtype=torch.bfloat16)
    turned, _ = attention.position.rotate(x, x, sequence.prepare(attention.position.needs()))
    assert turned.dtype == torch.bfloat16


def test_positions_restart_in_documents_and_go_on_in_chunks():
    documents = torch.tensor([[0, 0, 0, 1, 1]])
    table = RotaryTable(4, 10000.0, interleaved=False)
    cos, _ = table.derive(Sequence(torch.zeros(1, 5, dtype=torch.long), documents=documents))
    assert torch.equal(cos[:, 3:], cos[:, :2])
    past = Past(1, 8)
    past = past.advance(Sequence(torch.zeros(1, 4, dtype=torch.long), past=past))
    cos, _ = table.derive(Sequence(torch.zeros(1, 1, dtype=torch.long), past=past))
    torch.testing.assert_close(cos.flatten()[0].item(), math.cos(4.0), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("head_width", "fraction"), [(15, 1.0), (10, 0.5), (16, 0.0), (16, 1.5)])
def test_widths_that_are_no_pairs_are_refused(head_width, fraction):
    with pytest.raises(UserError, match=rf"head_width {head_width} times fraction {fraction}"):
        RoPE(context(head_width), fraction=fraction)


def test_rope_on_embeddings_is_refused():
    with pytest.raises(UserError, match="mixer"):
        RoPE(LayerContext(d_model=64, vocab_size=8, max_length=64))
