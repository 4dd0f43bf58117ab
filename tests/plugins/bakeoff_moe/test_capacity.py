"""Room for so many tokens a document, against a loop over tokens."""

import math
from fractions import Fraction

import pytest
import torch
from bakeoff.interfaces import Sequence
from bakeoff_moe.capacity import TokenGroups, rank_among_equals, within_capacity

E = 3


def seated_one_by_one(wanted, sequence, factor):
    """Who finds room, document by document, choice by choice, token by token."""
    B, T = sequence.tokens.shape
    k = wanted.shape[1]
    found = torch.full_like(wanted, E)
    for row in range(B):
        documents = [0] * T if sequence.documents is None else sequence.documents[row].tolist()
        real = [True] * T if sequence.real is None else sequence.real[row].tolist()
        for document in set(documents):
            own = [t for t in range(T) if documents[t] == document and real[t]]
            room = [math.ceil(Fraction(len(own), E) * factor)] * E
            for choice in range(k):
                for t in own:
                    e = int(wanted[row * T + t, choice])
                    if e < E and room[e] > 0:
                        room[e] -= 1
                        found[row * T + t, choice] = e
    return found


def described(how, B=3, T=11):
    tokens, places = torch.zeros(B, T, dtype=torch.long), torch.arange(T)
    documents = torch.stack([(places >= 4).long() + 2 * (places >= 9), (places >= 1).long(), 0 * places])
    left = places >= torch.tensor([[0], [2], [6]])
    holes = torch.rand(B, T, generator=torch.Generator().manual_seed(4)) > 0.3
    given = {
        "rows": {},
        "documents": {"documents": documents},
        "padding": {"real": left},
        "documents and padding": {"documents": documents, "real": holes},
    }
    return Sequence(tokens, **given[how]).prepare([TokenGroups()])


@pytest.mark.parametrize("how", ["rows", "documents", "padding", "documents and padding"])
@pytest.mark.parametrize("factor", [Fraction(1, 10), Fraction(1), Fraction(5, 4), Fraction(5)])
@pytest.mark.parametrize("k", [1, 2])
def test_the_same_tokens_find_room_as_one_by_one(how, factor, k):
    sequence = described(how)
    wanted = torch.randint(E + 1, (sequence.tokens.numel(), k), generator=torch.Generator().manual_seed(k))
    got = within_capacity(wanted, sequence[TokenGroups()], E, factor)
    real = torch.ones(len(wanted), dtype=torch.bool) if sequence.real is None else sequence.real.flatten()
    assert torch.equal(got[real], seated_one_by_one(wanted, sequence, factor)[real])


def test_there_is_room_for_at_least_one_token_of_every_document():
    sequence = described("documents")
    got = within_capacity(torch.zeros(33, 1, dtype=torch.long), sequence[TokenGroups()], E, Fraction(1, 1_000_000))
    assert torch.equal(got.view(3, 11) == 0, sequence.starts)


def test_the_number_of_tokens_is_not_rounded_up_by_floating_point():
    # 800 / 8 * 1.1 is 110.00000000000001 in float64
    sequence = Sequence(torch.zeros(1, 800, dtype=torch.long)).prepare([TokenGroups()])
    factor = Fraction(1.1).limit_denominator(1_000_000)
    got = within_capacity(torch.zeros(800, 1, dtype=torch.long), sequence[TokenGroups()], 8, factor)
    assert (got == 0).sum() == 110


def test_ranks_count_earlier_equals():
    assert rank_among_equals(torch.tensor([5, 3, 5, 5, 3, 9])).tolist() == [0, 0, 1, 2, 1, 0]
    assert rank_among_equals(torch.empty(0, dtype=torch.long)).tolist() == []
