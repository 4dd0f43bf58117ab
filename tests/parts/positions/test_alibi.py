import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.parts.positions.alibi import ALiBi, slopes


def alibi(n_heads, window=None):
    return ALiBi(LayerContext(d_model=64, vocab_size=8, max_length=64, n_heads=n_heads, window=window))


def tokens(T, B=1):
    return torch.zeros(B, T, dtype=torch.long)


def bias_of(position, sequence, rolling=False):
    return position.bias(sequence.prepare(position.needs()), rolling)


@pytest.mark.parametrize(
    ("n_heads", "expected"),
    [
        (1, [2**-8]),
        (8, [2.0**-h for h in range(1, 9)]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (12, [*(2.0**-h for h in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_slopes(n_heads, expected):
    assert slopes(n_heads) == pytest.approx(expected, rel=1e-12)


def test_published_slopes_of_twelve_heads():
    assert slopes(12)[8:] == pytest.approx([0.707107, 0.353553, 0.176777, 0.088388], abs=5e-7)
    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_sixteen_heads_begin_at_the_root_of_a_half():
    torch.testing.assert_close(slopes(16)[0], 0.70710678, atol=1e-8, rtol=0)


@pytest.mark.parametrize("n_heads", [4, 6, 12])
def test_the_bias_is_blooms_up_to_a_constant_a_row(n_heads):
    modeling = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = modeling.build_alibi_tensor(torch.ones(1, 7, dtype=torch.long), n_heads, torch.float32)  # (H, 1, S)
    ours = bias_of(alibi(n_heads), Sequence(tokens(7)))[0]
    for t in range(7):
        row = theirs[:, 0, : t + 1] - theirs[:, 0, t : t + 1]
        torch.testing.assert_close(ours[:, t, : t + 1], row)


def test_a_single_token_sees_how_far_its_past_is():
    past = Past(1, 8)
    past = past.advance(Sequence(tokens(3), past=past))
    bias = bias_of(alibi(8), Sequence(tokens(1), past=past))
    assert bias.shape == (1, 8, 1, 4)
    assert bias[0, 0, 0].tolist() == [-1.5, -1.0, -0.5, 0.0]


def test_a_single_token_sees_the_slots_of_a_rolling_cache():
    with torch.no_grad():
        past = Past(1, 16)
        past = past.advance(Sequence(tokens(5), past=past))
        # window 4: slots hold 4, 1, 2, 3; token 5 takes the place of 1
        bias = bias_of(alibi(8, window=4), Sequence(tokens(1), past=past), rolling=True)
    assert bias[0, 0, 0].tolist() == [-0.5, 0.0, -1.5, -1.0]


def test_distances_are_symmetric_where_visibility_is():
    bias = bias_of(alibi(8), Sequence(tokens(3), visibility="bidirectional"))
    assert bias[0, 0].tolist() == [[0, -0.5, -1], [-0.5, 0, -0.5], [-1, -0.5, 0]]


def test_a_bias_is_the_same_wherever_the_sequence_begins():
    moved = Sequence(tokens(9), positions=1000 + torch.arange(9)[None])
    assert torch.equal(bias_of(alibi(6), moved), bias_of(alibi(6), Sequence(tokens(9))))


def test_alibi_on_embeddings_is_refused():
    with pytest.raises(UserError, match="mixer"):
        ALiBi(LayerContext(d_model=64, vocab_size=8, max_length=64))
