"""Runs that texts have in common: as a naive search finds them, and as difflib does."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
import pytest
from bakeoff.evaluate.tasks import common_runs
from bakeoff.evaluate.tasks.common_runs import NOTHING, Run, common_run, longest_runs, overlaps
from bakeoff.evaluate.tasks.overlap import Chunks


def naive(text, other):
    """The longest slice of one that is a slice of the other."""
    runs = [text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)]
    slices = {tuple(other[i:j]) for i in range(len(other)) for j in range(i + 1, len(other) + 1)}
    return max((len(run) for run in runs if tuple(run) in slices), default=0)


@pytest.mark.parametrize(("m", "L", "ids"), [(8, 16, 3), (5, 3, 2), (1, 7, 2), (12, 24, 40)])
def test_as_searched_naively_and_as_difflib_finds_it(m, L, ids, monkeypatch):
    monkeypatch.setattr(common_runs, "AT_ONCE", 7)
    draws = np.random.default_rng(m)
    texts, others = draws.integers(0, ids, (20, m)), draws.integers(0, ids, (20, L))
    found = longest_runs(texts, others).tolist()
    pairs = list(zip(texts.tolist(), others.tolist(), strict=True))
    assert found == [naive(*pair) for pair in pairs]
    assert found == [SequenceMatcher(None, *pair, autojunk=False).find_longest_match().size for pair in pairs]
    assert found == [common_run(*pair).size for pair in pairs]


def test_runs_by_hand():
    texts = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [5, 5, 5, 5], [1, 2, 3, 4]])
    others = np.array([[0, 2, 3, 9, 1, 2], [4, 3, 2, 1, 0, 0], [5, 5, 0, 5, 5, 5], [NOTHING] * 6])
    assert longest_runs(texts, others).tolist() == [2, 1, 3, 0]
    assert common_run([1, 2, 3, 4], [0, 2, 3, 9, 1, 2]) == Run(0, 4, 2)  # of equals the first in the first text
    assert longest_runs(texts[:0], others[:0]).tolist() == []


def test_overlap_is_that_of_the_best_neighbour_and_padding_is_like_nothing():
    chunks = np.array([[1, 2, 3, 4], [0, 0, 0, 0]])
    neighbours = np.array([[[9, 1, 2, 9], [2, 3, 4, 0]], [[0, 0, 0, 0], [0, 7, 0, 0]]])
    real = np.array([[[True] * 4, [True, True, False, False]], [[False] * 4, [True] * 4]])
    assert overlaps(chunks, neighbours, real).tolist() == [0.5, 0.5]


def test_buckets_by_hand():
    chunks = Chunks(
        overlap=np.array([0.0, 0.125, 0.3, 1.0]),
        found=np.array([8.0, 4.0, 3.0, 1.0]),
        without=np.array([8.0, 6.0, 4.0, 9.0]),
        size=np.array([4.0, 4.0, 2.0, 10.0]),
    )
    own = {bucket.most: bucket for bucket in chunks.between()}
    assert list(own) == [0.125, 0.5, 1.0]  # nothing lies between 0.125 and 0.25, nor between 0.5 and 0.75
    assert [bucket.chunks for bucket in own.values()] == [2, 1, 1]
    assert [bucket.share for bucket in own.values()] == [0.4, 0.1, 0.5]
    assert (own[0.125].found, own[0.125].without) == (12 / 8, 14 / 8)
    assert (own[0.5].found, own[0.5].without) == (3 / 2, 4 / 2)
    upto = {bucket.most: bucket for bucket in chunks.up_to()}
    assert [bucket.share for bucket in upto.values()] == [0.4, 0.4, 0.5, 0.5, 1.0]
    assert (upto[0.75].found, upto[0.75].without) == (15 / 10, 18 / 10)
    assert (upto[1.0].found, upto[1.0].without) == (16 / 20, 27 / 20)
