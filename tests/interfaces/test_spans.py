"""Which rank has which tokens of a row."""

import pytest
import torch
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.spans import Spans, bounds


class Rank:
    """One of so many ranks, none of which is there."""

    def __init__(self, rank, ranks):
        self.of = rank, ranks

    def rank(self):
        return self.of[0]

    def size(self):
        return self.of[1]


def spans(length, ranks, rank, order, **told):
    return Spans(Sequence(torch.arange(length)[None], **told), Rank(rank, ranks), order)


@pytest.mark.parametrize(
    ("length", "order", "places"),
    [
        (8, "contiguous", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (8, "zigzag", [[0, 1, 6, 7], [2, 3, 4, 5]]),
        (7, "contiguous", [[0, 1, 2, 3], [4, 5, 6]]),
        (7, "zigzag", [[0, 1, 6], [2, 3, 4, 5]]),
        (4, "zigzag", [[0, 3], [1, 2]]),
    ],
)
def test_places_of_two_ranks(length, order, places):
    for rank, wanted in enumerate(places):
        own = spans(length, 2, rank, order)
        assert [own.places(r).tolist() for r in range(2)] == places
        assert own.take(torch.arange(length)[None])[0].tolist() == wanted
        local = Sequence(torch.arange(length)[None]).shared_out(Rank(rank, 2), order)
        assert local.positions[0].tolist() == local.index[0].tolist() == wanted  # never counted from 0 on each rank


def test_a_span_goes_on_where_the_one_before_it_ended():
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]])
    own = spans(8, 2, 0, "zigzag", documents=documents)
    first, last = own.sequences
    assert first.segments.tolist() == [[1, 1]]
    assert last.tokens.tolist() == [[6, 7]]
    assert last.segments.tolist() == [[1, 1]]  # a document begins there
    (_, last) = spans(8, 2, 1, "zigzag", documents=documents).sequences
    assert last.segments.tolist() == [[0, 0]]  # tokens 4 and 5 are of the document of token 3
    assert last.positions.tolist() == [[1, 2]]


def test_fewer_tokens_than_spans():
    assert bounds(4, 4, "contiguous") == [(0, 1), (1, 2), (2, 3), (3, 4)]
    with pytest.raises(ValueError, match=r"3 tokens is shared out over 4 ranks \(contiguous\).* at least 1 token"):
        bounds(3, 4, "contiguous")
    with pytest.raises(ValueError, match=r"3 tokens is shared out over 2 ranks, which is 4 spans \(zigzag\)"):
        bounds(3, 2, "zigzag")
