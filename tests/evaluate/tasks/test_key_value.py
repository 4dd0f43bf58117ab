"""Keys and values at depth: where pairs stand, what is asked, and that attention learns to find them anywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from bakeoff.evaluate.tasks.key_value import KeyValue
from bakeoff.evaluate.tasks.recall import hidden
from bakeoff.interfaces import Result
from torch import nn

SMALL = {"lengths": 2, "depths": 3, "shortest": 24, "longest": 40, "pairs": 4, "vocabulary": 32, "filler": 8}


def drawn(depth=None, n=64, length=40, pairs=4):
    generator = torch.Generator().manual_seed(0)
    return hidden(n, pairs=pairs, length=length, vocabulary=32, filler=8, depth=depth, generator=generator)


@pytest.mark.parametrize("depth", [None, 50.0])
@pytest.mark.parametrize(("length", "pairs"), [(40, 4), (16, 4), (18, 1)])
def test_every_key_stands_once_in_the_haystack_before_its_value_and_once_behind_it(depth, length, pairs):
    tokens, queries, answers = drawn(depth, length=length, pairs=pairs)
    edge = length - 2 * pairs
    assert tokens.shape == (64, length)
    for row, asked, answered in zip(tokens.tolist(), queries.tolist(), answers.tolist(), strict=True):
        hay, behind = row[:edge], row[edge:]
        assert sorted(asked) == list(range(edge, length, 2))
        assert behind[1::2] == [0] * pairs
        keys = [row[place] for place in asked]
        assert len(set(keys)) == pairs
        assert [hay[hay.index(key) + 1] for key in keys] == answered
        assert all(hay.count(key) == 1 and hay.index(key) % 2 == 0 and 1 <= key < 16 for key in keys)
        assert all(16 <= value < 32 for value in answered)
        assert sum(32 <= token < 40 for token in hay) == edge - 2 * pairs


@pytest.mark.parametrize(("depth", "slot"), [(0.0, 0), (7.586, 1), (50.0, 8), (75.0, 11), (100.0, 15)])
def test_the_first_query_is_of_the_pair_at_that_depth(depth, slot):
    # 40 tokens less 4 queries of 2 leave 16 slots, 0 to 15: 0.07586 x 15 = 1.1, 0.5 x 15 = 7.5 (to the even), 11.25
    tokens, queries, answers = drawn(depth)
    keys = tokens.gather(1, queries[:, :1]).squeeze(1)
    assert torch.equal(tokens[:, 2 * slot], keys)
    assert torch.equal(tokens[:, 2 * slot + 1], answers[:, 0])


class Searches(nn.Module):
    """Answers each token with the one that follows where it first stood, if that is not too long ago."""

    layers = ()

    def __init__(self, reach):
        super().__init__()
        self.embedding, self.reach = torch.zeros(1), reach

    def forward(self, sequence):
        tokens, T = sequence.tokens, sequence.length
        first = (tokens[:, :, None] == tokens[:, None, :]).int().argmax(-1)
        answers = tokens.gather(1, (first + 1).clamp_max(T - 1))
        answers = answers.masked_fill(torch.arange(T) - first > self.reach, 0)
        return Result(nn.functional.one_hot(answers, 40).float())


@pytest.mark.parametrize(
    ("reach", "values"),
    [(100, [[1, 1], [1, 1], [1, 1]]), (0, [[0, 0], [0, 0], [0, 0]]), (24, [[1, 0], [1, None], [1, 1]])],
)
def test_a_copy_oracle_is_right_in_every_cell_and_one_that_forgets_where_it_is_near(reach, values):
    model = nn.Module()
    model.backbone, model.head = Searches(reach), nn.Identity()
    cells = KeyValue(**SMALL).cells(model, SimpleNamespace(seed_of=lambda purpose: 0))
    for row, known in zip(cells.values, values, strict=True):
        assert all(expected is None or value == expected for value, expected in zip(row, known, strict=True))


def test_lengths_are_trained_in_turn_and_cells_have_draws_of_their_own():
    recipe = SimpleNamespace(seed_of=lambda purpose: 0)
    task = KeyValue(**{**SMALL, "lengths": 3})
    examples = task._drawn(recipe, "training", 5)
    assert [next(examples).tokens.shape for _ in range(4)] == [(5, 40), (5, 32), (5, 24), (5, 40)]
    one, again, other = (task.asked_at(40, 50.0, task.generator(recipe, name)).tokens for name in ("a", "a", "b"))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mixer", "steps", "least", "most"),
    [({"use": "attention", "n_heads": 1}, 2000, 0.95, 1.0), ({"use": "linear_attention", "n_heads": 2}, 500, 0.0, 0.6)],
    ids=["attention", "linear_attention"],
)
def test_two_layers_of_attention_solve_the_grid_and_a_small_state_does_not(untrained, mixer, steps, least, most):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that sums have one order, and busy neighbours do not hold up a second thread
    try:
        answer = KeyValue(**SMALL, steps=steps).measure(untrained(mixer), lambda numbers: None)
    finally:
        torch.set_num_threads(threads)
    assert least <= answer.figures["worst"] <= most
    assert answer.data["cells"]["lengths"] == [24, 40]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shortest": 14}, "length is 14; 4 pairs and their queries take at least 16"),
        ({"pairs": 20, "shortest": 90, "longest": 100}, "vocabulary is 32; 20 different keys take at least 42"),
        ({"filler": 0}, "filler is 0; it must be at least 1"),
        ({"layers": 0}, "layers is 0; it must be at least 1"),
    ],
)
def test_slips(wrong, said):
    with pytest.raises(ValueError, match=said):
        KeyValue(**{**SMALL, **wrong})
