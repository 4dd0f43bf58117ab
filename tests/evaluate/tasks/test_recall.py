"""Examples of associative recall: the published one, and what holds for all."""

from __future__ import annotations

import pytest
import torch
from bakeoff.evaluate.tasks.recall import draw, place


def some(n=500, seed=0, **sizes):
    sizes = {"pairs": 4, "length": 64, "vocabulary": 256, **sizes}
    return draw(n, generator=torch.Generator().manual_seed(seed), **sizes)


def test_the_published_example():
    # the docstring of zoology's generator: 2 pairs, 16 tokens, queries 10 and 4 tokens behind the keys
    made = place(torch.tensor([[2, 4]]), torch.tensor([[8, 7]]), torch.tensor([[4, 1]]), 16)
    assert made.tokens.tolist() == [[2, 8, 4, 7, 0, 0, 4, 0, 0, 0, 0, 0, 2, 0, 0, 0]]
    labels = torch.full((1, 16), -100).scatter(1, made.queries, made.answers)
    assert labels.tolist() == [[*[-100] * 6, 7, *[-100] * 5, 8, -100, -100, -100]]


@pytest.mark.parametrize("sizes", [{}, {"pairs": 16}, {"pairs": 1, "length": 4, "vocabulary": 4}, {"vocabulary": 33}])
def test_what_holds_for_every_example(sizes):
    made = some(**sizes)
    pairs, half = sizes.get("pairs", 4), sizes.get("vocabulary", 256) // 2
    context, rest = made.tokens[:, : 2 * pairs], made.tokens[:, 2 * pairs :]
    keys, values = context[:, 0::2], context[:, 1::2]
    assert ((keys >= 1) & (keys < half)).all()
    assert ((values >= half) & (values < sizes.get("vocabulary", 256))).all()
    assert all(len(set(row)) == pairs for each in (keys, values, made.queries) for row in each.tolist())
    assert (made.queries % 2 == 0).all()
    assert (made.queries >= 2 * pairs).all()
    assert torch.equal(made.tokens.gather(1, made.queries), keys)
    assert torch.equal(made.answers, values)
    assert ((rest != 0).sum(1) == pairs).all()


def test_gaps_follow_the_power_law():
    made = some(20_000, pairs=2, length=16)
    gaps = (made.queries[:, 0] - 4) // 2
    # the first of the two gaps: a j^(a - 1) with a = .01 over j = 1..6, normalised
    weights = [0.01 * j**-0.99 for j in range(1, 7)]
    for j, weight in enumerate(weights):
        share = weight / sum(weights)
        seen = float((gaps == j).double().mean())
        assert seen == pytest.approx(share, abs=4 * (share * (1 - share) / 20_000) ** 0.5)


def test_equal_seeds_give_equal_examples():
    first, again, other = some(seed=3), some(seed=3), some(seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.tokens, other.tokens)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"pairs": 0}, "pairs is 0; it must be at least 1"),
        ({"length": 63}, "length is 63; it must be even"),
        ({"pairs": 17}, "length is 64; 17 pairs and their queries take at least 68"),
        ({"vocabulary": 9}, "vocabulary is 9; 4 different keys take at least 10"),
    ],
)
def test_sizes_that_do_not_fit(sizes, said):
    with pytest.raises(ValueError, match=said):
        some(**sizes)
