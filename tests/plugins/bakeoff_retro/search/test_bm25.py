import math
from collections import Counter

import numpy as np
import pytest
from bakeoff.errors import MissingExtra, UserError
from bakeoff_retro import BM25
from bakeoff_retro.search import libraries

TEXTS = ["the cat sat", "the dog sat on the cat", "Birds fly; birds sing.", "the the the", "a dog, a log"]
QUERIES = ["dog cat", "the birds", "cat cat sat", "nothing known"]


def opened(tmp_path, texts=TEXTS, **arguments):
    retriever = BM25(**arguments)
    retriever.build(texts, tmp_path, lambda more: None)
    return retriever.load(tmp_path, texts)


def by_formula(query, k1=1.5, b=0.75):
    """The published sum, word by word, with the logarithm that cannot be negative."""
    split = ["the cat sat", "the dog sat on the cat", "birds fly birds sing", "the the the", "a dog a log"]
    chunks = [Counter(text.split()) for text in split]
    lengths = [sum(chunk.values()) for chunk in chunks]
    mean = sum(lengths) / len(lengths)
    scores = []
    for chunk, length in zip(chunks, lengths, strict=True):
        score = 0.0
        for word in query.split():
            df = sum(word in other for other in chunks)
            idf = math.log(1 + (len(chunks) - df + 0.5) / (df + 0.5))
            score += idf * chunk[word] / (chunk[word] + k1 * (1 - b + b * length / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("arguments", [{}, {"k1": 0.9, "b": 0.4}, {"k1": 2.0, "b": 0.0}])
def test_scores_are_those_of_the_formula(tmp_path, arguments):
    found = opened(tmp_path, **arguments).neighbours(QUERIES, 5)
    for query, numbers, scores in zip(QUERIES, *found, strict=True):
        expected = by_formula(query, **arguments)
        order = [n for n in sorted(range(5), key=lambda n: (-expected[n], n)) if expected[n] > 0]
        assert numbers.tolist() == order + [-1] * (5 - len(order))
        assert scores[: len(order)] == pytest.approx([expected[n] for n in order], rel=1e-5)
        assert np.isneginf(scores[len(order) :]).all()


def test_of_equal_scores_the_lower_number_comes_first(tmp_path):
    texts = [f"same words {'and more ' * (i % 3)}" for i in range(30)]
    index = opened(tmp_path, texts)
    assert index.neighbours(["same"], 4).numbers.tolist() == [[0, 3, 6, 9]]
    assert index.neighbours(["same"], 4, np.array([[2, 7]])).numbers.tolist() == [[0, 9, 12, 15]]


def test_punctuation_and_case_are_not_looked_at(tmp_path):
    assert opened(tmp_path).neighbours(["BIRDS!"], 1).numbers.tolist() == [[2]]


def test_a_database_without_words_is_refused(tmp_path):
    with pytest.raises(UserError, match="none of the 2 chunks of the database holds a word"):
        opened(tmp_path, ["...", " "])


def test_a_chunk_without_words_is_never_found(tmp_path):
    assert opened(tmp_path, ["...", "word", ""]).neighbours(["word", "..."], 3).numbers.tolist() == [
        [1, -1, -1],
        [-1, -1, -1],
    ]


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"and b is 1\.5"):
        BM25(b=1.5)


def test_without_bm25s_the_line_that_adds_it_is_told(monkeypatch):
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"retriever 'bm25' .*pip install 'bakeoff\[retrieval\]'"):
        BM25()
