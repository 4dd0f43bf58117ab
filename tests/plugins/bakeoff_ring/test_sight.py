"""What ranks of a ring see of each other's keys; numbers by hand."""

from types import SimpleNamespace

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.registry import find
from bakeoff_ring.sight import Reach, Steps, offsets


def shared_out(rank, *, ranks=2, length=8, order="zigzag", **told):
    """This rank's tokens, without any ranks."""
    group = SimpleNamespace(rank=lambda: rank, size=lambda: ranks)
    return Sequence(torch.zeros(1, length, dtype=torch.long), **told).shared_out(group, order)


def rectangles(rank, *, window=None, **told):
    """By offset: queries, keys, and what is seen of them."""
    found = Steps(window).derive(shared_out(rank, **told))
    kinds = {(False, True): "all", (True, False): "up to its own", (False, False): "masked"}
    return {
        step.offset: [
            (one.queries.start, one.queries.stop, one.keys.start, one.keys.stop, kinds[one.causal, one.plain])
            for one in step.rectangles
        ]
        for step in found
    }


@pytest.mark.parametrize(
    ("order", "rank", "positions"),
    [
        ("contiguous", 0, [0, 1, 2, 3]),
        ("contiguous", 1, [4, 5, 6, 7]),
        ("zigzag", 0, [0, 1, 6, 7]),
        ("zigzag", 1, [2, 3, 4, 5]),
    ],
)
def test_positions_are_those_in_the_row(order, rank, positions):
    own = shared_out(rank, order=order)
    assert own.positions.tolist() == own.index.tolist() == [positions]


def test_a_contiguous_ring_looks_back():
    assert rectangles(0, order="contiguous") == {0: [(0, 4, 0, 4, "up to its own")], 1: []}
    assert rectangles(1, order="contiguous") == {0: [(0, 4, 0, 4, "up to its own")], 1: [(0, 4, 0, 4, "all")]}


def test_a_zigzag_ring_shares_out_what_there_is_to_look_at():
    # rank 0 has 0, 1, 6, 7 and rank 1 has 2, 3, 4, 5
    assert rectangles(0) == {0: [(0, 4, 0, 4, "up to its own")], 1: [(2, 4, 0, 4, "all")]}
    assert rectangles(1) == {0: [(0, 4, 0, 4, "up to its own")], 1: [(0, 4, 0, 2, "all")]}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zigzag_work_is_equal(ranks):
    work = [
        [
            sum((b - a) * (d - c) for a, b, c, d, _ in found)
            for found in rectangles(r, ranks=ranks, length=16 * ranks).values()
        ]
        for r in range(ranks)
    ]
    assert all(one == work[0] for one in work)
    assert work[0] == [16 * 16] + [16 * 16 // 2] * (ranks - 1)


def test_a_window_sees_corners():
    # queries 4 to 7 of rank 1, windows of 3: 4 sees 2 and 3, 5 sees 3
    found = rectangles(1, order="contiguous", window=3)
    assert found == {0: [(0, 4, 0, 4, "masked")], 1: [(0, 2, 2, 4, "masked")]}
    (step,) = [one for one in Steps(3).derive(shared_out(1, order="contiguous")) if one.offset == 1]
    assert step.rectangles[0].seen.mask.tolist() == [[[[True, True], [False, True]]]]


def test_documents_that_are_not_seen_are_not_computed():
    # 0, 1 | 2, …, 7: rank 1 of a zigzag looks at nothing of rank 0, whose last span sees all of rank 1
    documents = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    assert rectangles(1, documents=documents) == {0: [(0, 4, 0, 4, "up to its own")], 1: []}
    own = [(0, 2, 0, 2, "up to its own"), (2, 4, 2, 4, "up to its own")]
    assert rectangles(0, documents=documents) == {0: own, 1: [(2, 4, 0, 4, "all")]}


def test_both_sides_and_prefixes():
    assert rectangles(0, visibility="bidirectional") == {0: [(0, 4, 0, 4, "all")], 1: [(0, 4, 0, 4, "all")]}
    # the first 4 tokens see each other: query 0, of rank 0, sees keys 2 and 3, of rank 1
    prefix = torch.full((1, 8), 4)
    found = rectangles(0, visibility="prefix", prefix=prefix, order="contiguous")
    assert found == {0: [(0, 4, 0, 4, "all")], 1: []}
    assert rectangles(0, visibility="prefix", prefix=prefix)[1] == [(0, 4, 0, 2, "all"), (2, 4, 2, 4, "all")]


@pytest.mark.parametrize(
    ("order", "behind", "ahead", "steps"),
    [
        ("contiguous", None, 0, [0, 1, 2, 3]),
        ("contiguous", 4, 0, [0, 1]),
        ("contiguous", 5, 0, [0, 1, 2]),
        ("contiguous", 1, 1, [0, 1, 3]),
        ("contiguous", 0, 0, [0]),
        ("zigzag", 1, 0, [0, 1, 3]),
        ("zigzag", 3, 0, [0, 1, 2, 3]),
    ],
)
def test_which_blocks_go_round(order, behind, ahead, steps):
    # 16 tokens over 4 ranks: spans of 4, or of 2
    assert offsets(16, 4, order, Reach(behind, ahead)) == steps


def test_a_window_over_padding_reaches_further():
    # real tokens at 0 and 7: the second sees the first, one real token before it
    real = torch.tensor([[True, False, False, False, False, False, False, True]])
    assert [one.offset for one in Steps(2).derive(shared_out(0, ranks=4, real=real, order="contiguous"))] == [
        0,
        1,
        2,
        3,
    ]
    assert rectangles(3, ranks=4, real=real, order="contiguous", window=2)[3] == [(0, 2, 0, 2, "masked")]


def test_nothing_is_derived_of_whole_rows():
    assert Steps(None).derive(Sequence(torch.zeros(1, 4, dtype=torch.long))) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_learned_positions_are_counted_along_the_whole_row(rank):
    place = LayerContext(d_model=4, vocab_size=1, max_length=7)
    (need,) = find("learned_position", "position")(place).needs()
    assert need.derive(shared_out(rank, length=7)).tolist() == shared_out(rank, length=7).positions.tolist()
    with pytest.raises(UserError, match="position 7 is beyond the 7"):  # on the rank that does not have it, too
        need.derive(shared_out(rank, order="contiguous"))
