"""Positions, starts and pasts, by hand."""

import pytest
import torch
from bakeoff.interfaces import Past, Sequence
from bakeoff.interfaces.state import fork, nbytes, select


def tokens(batch, length):
    return torch.zeros(batch, length, dtype=torch.long)


def test_plain_rows_count_from_zero():
    s = Sequence(tokens(2, 4))
    assert s.index.tolist() == s.positions.tolist() == [[0, 1, 2, 3]]
    assert s.starts is None
    assert s.segments is None


def test_documents_reset_positions_but_not_the_index():
    s = Sequence(tokens(1, 5), documents=torch.tensor([[7, 7, 3, 3, 3]]))
    assert s.positions.tolist() == [[0, 1, 0, 1, 2]]
    assert s.index.tolist() == [[0, 1, 2, 3, 4]]
    assert s.starts.tolist() == [[True, False, True, False, False]]
    assert s.segments.tolist() == [[1, 1, 2, 2, 2]]


def test_left_padding_is_not_counted():
    s = Sequence(tokens(1, 5), real=torch.tensor([[False, False, True, True, True]]))
    assert s.positions[0, 2:].tolist() == [0, 1, 2]


def test_a_document_starts_at_its_first_real_token():
    s = Sequence(tokens(1, 4), documents=torch.tensor([[0, 0, 0, 1]]), real=torch.tensor([[False, True, True, True]]))
    assert s.starts.tolist() == [[False, True, False, True]]


def test_padding_between_documents_does_not_hide_a_start():
    s = Sequence(tokens(1, 4), documents=torch.tensor([[0, 0, 1, 1]]), real=torch.tensor([[True, True, False, True]]))
    assert s.starts.tolist() == [[True, False, False, True]]


@pytest.mark.parametrize("slots", [True, False])
def test_a_past_continues_index_positions_and_documents(slots):
    past = Past(1, 8, slots=slots)
    first = Sequence(tokens(1, 3), documents=torch.tensor([[0, 0, 1]]), past=past)
    assert first.starts.tolist() == [[True, False, True]]
    past = past.advance(first)
    second = Sequence(tokens(1, 3), documents=torch.tensor([[1, 1, 2]]), past=past)
    assert second.index.tolist() == [[3, 4, 5]]
    assert second.positions.tolist() == [[1, 2, 0]]
    assert second.starts.tolist() == [[False, False, True]]
    entries = second.entries()
    assert entries.documents.tolist() == [[0, 0, 1, 1, 1, 2]]
    assert entries.positions.tolist() == [[0, 1, 0, 1, 2, 0]]


def test_slots_hold_real_tokens_only():
    past = Past(2, 8, slots=True)
    real = torch.tensor([[False, True, True], [True, True, True]])
    past = past.advance(Sequence(tokens(2, 3), real=real, past=past))
    assert past.length.tolist() == [2, 3]
    assert past.longest == 3
    assert past.ragged
    entries = Sequence(tokens(2, 1), past=past).entries()
    assert entries.real.tolist() == [[True, True, True, False], [True, True, True, True]]
    assert entries.index.tolist() == [[0, 1, 2, 3]]


def test_appended_entries_keep_padding_in_order():
    past = Past(1, 8, slots=False)
    past = past.advance(Sequence(tokens(1, 2), real=torch.tensor([[False, True]]), past=past))
    entries = Sequence(tokens(1, 2), past=past).entries()
    assert entries.real.tolist() == [[False, True, True, True]]
    assert entries.index[0, 1:].tolist() == [0, 1, 2]


def test_more_tokens_than_the_state_was_made_for():
    past = Past(1, 4, slots=True)
    past = past.advance(Sequence(tokens(1, 3), past=past))
    with pytest.raises(ValueError, match="3 tokens in the state and 2 more are over the 4"):
        past.advance(Sequence(tokens(1, 2), past=past))


def test_right_padding_beyond_the_capacity_is_no_overflow():
    past = Past(1, 4, slots=True)
    past = past.advance(Sequence(tokens(1, 3), past=past))
    past = past.advance(Sequence(tokens(1, 2), real=torch.tensor([[True, False]]), past=past))
    assert past.length.tolist() == [4]


def test_documents_may_not_come_and_go():
    past = Past(1, 8, slots=True)
    past = past.advance(Sequence(tokens(1, 2), documents=torch.zeros(1, 2, dtype=torch.long), past=past))
    with pytest.raises(ValueError, match="begun with document ids"):
        past.advance(Sequence(tokens(1, 1), past=past))


def test_rows_of_a_past_can_be_chosen():
    past = Past(2, 8, slots=True)
    real = torch.tensor([[False, True], [True, True]])
    past = past.advance(Sequence(tokens(2, 2), real=real, past=past))
    assert select(past, torch.tensor([1, 0, 1])).length.tolist() == [2, 1, 2]


def test_states_are_nests():
    state = {"k": torch.zeros(2, 3), "more": (torch.ones(2, 1), [torch.zeros(2)])}
    assert nbytes(state) == 4 * (6 + 2 + 2)
    chosen = select(state, torch.tensor([1]))
    assert chosen["k"].shape == (1, 3)
    copy = fork(state)
    copy["k"].add_(1)
    assert state["k"].sum() == 0


def test_an_unprepared_need_is_named():
    from dataclasses import dataclass

    from bakeoff.interfaces import Need

    @dataclass(frozen=True)
    class Length(Need):
        def derive(self, sequence):
            return sequence.length

    s = Sequence(tokens(1, 4))
    with pytest.raises(KeyError, match=r"needs\(\)"):
        s[Length()]
    assert s.prepare([Length()])[Length()] == 4


def test_visibility_is_checked():
    with pytest.raises(ValueError, match="sideways"):
        Sequence(tokens(1, 2), visibility="sideways")
    with pytest.raises(ValueError, match="prefix"):
        Sequence(tokens(1, 2), visibility="prefix")
