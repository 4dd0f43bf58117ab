"""Positions that are added to embeddings."""

import math

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.parts.positions.learned import LearnedPosition
from bakeoff.parts.positions.sinusoidal import SinusoidalPosition


def context(d_model=8, max_length=16):
    return LayerContext(d_model=d_model, vocab_size=8, max_length=max_length)


def added(position, sequence, d_model=8, dtype=torch.float32):
    sequence.prepare(position.needs())
    return position.embed(torch.zeros(*sequence.tokens.shape, d_model, dtype=dtype), sequence)


def tokens(T):
    return torch.zeros(1, T, dtype=torch.long)


def learned(max_length=16):
    position = LearnedPosition(context(max_length=max_length))
    initialise(position, seed=0)
    return position


def test_sinusoids_are_those_of_the_paper():
    table = added(SinusoidalPosition(context()), Sequence(tokens(12)))[0]
    for p in (0, 1, 11):
        for i in range(4):
            angle = p / 10000 ** (2 * i / 8)
            torch.testing.assert_close(table[p, 2 * i].item(), math.sin(angle), atol=1e-6, rtol=0)
            torch.testing.assert_close(table[p, 2 * i + 1].item(), math.cos(angle), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("T", "slack"), [(16, 1e-6), (512, 6e-5)])  # an angle of T is known to T / 2^24
@pytest.mark.parametrize("d_model", [16, 512])
def test_a_shift_turns_sinusoids_by_a_fixed_rotation(T, slack, d_model):
    table = added(SinusoidalPosition(context(d_model=d_model)), Sequence(tokens(T)), d_model)[0]
    numbers = torch.complex(table[:, 1::2], table[:, 0::2])  # cos + i sin
    for k in range(1, T):
        torch.testing.assert_close(numbers[k:], numbers[:-k] * numbers[k], atol=slack, rtol=0)


def test_an_odd_width_has_no_pairs():
    with pytest.raises(UserError, match="7"):
        SinusoidalPosition(context(d_model=7))


@pytest.mark.parametrize("make", [lambda: SinusoidalPosition(context()), learned])
def test_positions_restart_in_documents_and_go_on_in_chunks(make):
    position = make()
    whole = added(position, Sequence(tokens(9)))
    documents = torch.tensor([[0, 0, 0, 1, 1]])
    packed = added(position, Sequence(tokens(5), documents=documents))
    assert torch.equal(packed[:, 3:], whole[:, :2])
    past = Past(1, 16)
    for T in (4, 1, 3):
        sequence = Sequence(tokens(T), past=past)
        start = past.longest
        assert torch.equal(added(position, sequence), whole[:, start : start + T])
        past = past.advance(sequence)


@pytest.mark.parametrize("make", [lambda: SinusoidalPosition(context()), learned])
def test_the_type_of_the_embeddings_is_kept(make):
    assert added(make(), Sequence(tokens(3)), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_learned_vectors_have_the_role_of_an_embedding():
    position = learned()
    assert list(roles(position).values()) == ["embedding"]
    assert position.vectors.weight.shape == (16, 8)


def test_a_position_beyond_the_table_is_refused_with_both_numbers():
    position = learned(max_length=4)
    added(position, Sequence(tokens(4)))
    with pytest.raises(UserError, match=r"position 4 .*the 4 "):
        added(position, Sequence(tokens(5)))
    past = Past(1, 16)
    past = past.advance(Sequence(tokens(4), past=past))
    with pytest.raises(UserError, match=r"position 4 .*the 4 "):
        added(position, Sequence(tokens(1), past=past))


def test_many_short_documents_fit_a_short_table():
    documents = torch.arange(12)[None] // 4
    added(learned(max_length=4), Sequence(tokens(12), documents=documents))
