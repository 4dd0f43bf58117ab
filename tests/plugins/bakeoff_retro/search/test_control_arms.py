from collections import Counter

import numpy as np
import pytest
from bakeoff_retro import BM25, Flat, RandomChunks, Shuffled, Static
from bakeoff_retro.search.drawing import drawn

WORDS = ["river", "mill", "crown", "storm", "bread"]
TEXTS = [f"{WORDS[i % 5]} {i // 5} of {i * i}" for i in range(50)]
QUERIES = [f"query {i}" for i in range(2000)]
NONE = np.zeros(2, np.int64)


def opened(retriever, folder):
    retriever.build(TEXTS, folder, lambda more: None)
    return retriever.load(folder, TEXTS)


def test_each_number_is_drawn_as_often_as_another():
    """Chi-squared of 4000 draws over 40 numbers: 39 degrees of freedom, 0.1 % beyond 72.1."""
    counts = Counter(number for query in QUERIES for number in drawn(0, query, 2, 50, np.array([20, 30])))
    assert set(counts) == set(range(20)) | set(range(30, 50))
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 72.1


@pytest.mark.parametrize("count", [1, 30, 49, 50, 70])
def test_numbers_differ_until_none_is_left(count):
    numbers = drawn(3, "text", count, 50, NONE)
    assert len(numbers) == len(set(numbers)) == min(count, 50)
    assert drawn(3, "text", count, 50, np.array([0, 50])) == []


def test_seed_and_query_draw(tmp_path):
    one, other = (opened(RandomChunks(seed=seed), tmp_path).neighbours(QUERIES, 2).numbers for seed in (0, 1))
    assert np.array_equal(one, opened(RandomChunks(), tmp_path).neighbours(QUERIES, 2).numbers)
    assert (one == other).all(1).mean() < 0.01
    assert len({tuple(pair) for pair in one.tolist()}) > 1000


def test_random_chunks_do_not_follow_the_query(tmp_path):
    numbers = opened(RandomChunks(), tmp_path).neighbours(TEXTS, 2).numbers
    assert (numbers == np.arange(50)[:, None]).any(1).mean() < 0.2


def test_shuffled_gives_what_another_chunk_would_be_given(tmp_path):
    inner = opened(Flat(embedder=Static()), tmp_path)
    found = opened(Shuffled(retriever=Flat(embedder=Static())), tmp_path).neighbours(QUERIES[:40], 3)
    for row, query in enumerate(QUERIES[:40]):
        other = drawn(0, query, 1, 50, NONE)[0]
        assert found.numbers[row].tolist() == inner.neighbours([TEXTS[other]], 3).numbers[0].tolist()
        assert found.numbers[row, 0] == other


def test_shuffled_draws_and_finds_nothing_that_is_excluded(tmp_path):
    exclude = np.array([[5, 45]] * 40)
    index = opened(Shuffled(retriever=BM25()), tmp_path)
    numbers = index.neighbours(QUERIES[:40], 3, exclude).numbers
    assert ((numbers < 5) | (numbers >= 45)).all()
    assert (index.neighbours(QUERIES[:3], 3, np.array([[0, 50]] * 3)).numbers == -1).all()


def test_fingerprints_tell_seed_and_what_is_wrapped():
    flat = Flat(embedder=Static())
    kinds = [RandomChunks(), RandomChunks(seed=1), flat, Shuffled(retriever=flat), Shuffled(retriever=flat, seed=1)]
    kinds.append(Shuffled(retriever=Flat(embedder=Static(width=64))))
    assert len({kind.fingerprint() for kind in kinds}) == 6
    assert Shuffled(retriever=flat).described()["embedder"] == Static().fingerprint()
