"""Generated reviews: different, balanced, of known polarity."""

from __future__ import annotations

import re

import pytest
from bakeoff.errors import CapabilityError, UserError
from bakeoff.parts.corpora.python_source import PythonSource
from bakeoff.parts.corpora.reviews import Reviews
from bakeoff.parts.corpora.reviews_grammar import WORDS

GOOD = {word for words in WORDS["good"] for word in words.split()}
BAD = {word for words in WORDS["bad"] for word in words.split()}


@pytest.fixture(scope="module")
def labelled():
    corpus = Reviews(texts=4000)
    return {split: list(corpus.labelled(split)) for split in ("train", "validation")}


def test_labels_go_with_the_documents_of_their_split(labelled):
    corpus = Reviews(texts=4000)
    for split, pairs in labelled.items():
        assert [text for text, _ in pairs] == list(corpus.documents(split))
    assert len(labelled["validation"]) == pytest.approx(400, rel=0.2)


def test_all_are_different_short_ascii_and_half_of_them_favourable(labelled):
    pairs = labelled["train"] + labelled["validation"]
    assert len({text for text, _ in pairs}) == 4000
    assert sum(label for _, label in pairs) == 2000
    assert all(text.isascii() and text == text.lower() and 60 < len(text) < 800 for text, _ in pairs)
    assert not any(re.search(r"[{}]|\ba [aeiou]", text) for text, _ in pairs)
    mean = sum(len(text) for text, _ in pairs) / 4000
    assert Reviews(texts=4000).size() == pytest.approx(4000 * mean, rel=0.05)


def test_single_words_do_not_tell_the_polarity(labelled):
    # words of both sorts stand in reviews of both sorts, since the opposite is denied and granted
    for own in (0, 1):
        found = [set(re.findall(r"\w+", text)) for text, label in labelled["train"] if label == own]
        shares = [sum(bool(words & sort) for words in found) / len(found) for sort in (GOOD, BAD)]
        assert all(share > 0.4 for share in shares), shares


def test_seeds_give_other_texts_and_other_fingerprints():
    first, second = Reviews(texts=50), Reviews(texts=50, seed=1)
    assert not set(first.texts()) & set(second.texts())
    assert first.fingerprint() != second.fingerprint() != Reviews(texts=51, seed=1).fingerprint()


def test_refusals():
    with pytest.raises(UserError, match="texts is 1; it must be at least 2"):
        Reviews(texts=1)
    with pytest.raises(CapabilityError, match=r"PythonSource has no labels.*reviews"):
        next(PythonSource().labelled("train"))
