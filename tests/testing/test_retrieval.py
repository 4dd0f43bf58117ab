"""Faults planted in embedders and retrievers."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
from bakeoff.errors import UserError
from bakeoff.interfaces import Embedder, Found, Index, Retriever

from .stand_ins import broken


class Bytes(Embedder):
    """How often each byte stands in a text."""

    width = 256

    def fingerprint(self):
        return "bytes"

    def embed(self, texts):
        counts = [np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=256) for text in texts]
        return self.scaled(np.array(counts, np.float32).reshape(-1, 256))

    def scaled(self, counts):
        return counts / np.maximum(1, np.linalg.norm(counts, axis=1, keepdims=True))


class Long(Bytes):
    def scaled(self, counts):
        return counts


class OfTheBatch(Bytes):
    """A byte weighs less where other texts hold it too."""

    def scaled(self, counts):
        return super().scaled(counts / (1 + counts.sum(0) - counts))


class Double(Bytes):
    def scaled(self, counts):
        return super().scaled(counts).astype(np.float64)


class Deaf(Bytes):
    """Says the same of all texts but the empty one."""

    def scaled(self, counts):
        return (counts.sum(1, keepdims=True) > 0) * np.eye(1, 256, dtype=np.float32)


class EachItsOwn(Bytes):
    def fingerprint(self):
        return str(id(self))


class Shared(Retriever):
    """Compares sets of words, and keeps those of the database in one file."""

    def fingerprint(self):
        return "shared"

    def build(self, texts, folder, progress):
        (folder / "words.json").unlink(missing_ok=True)
        words = []
        for text in texts[:]:
            words.append(text.split())
            progress(1)
        (folder / "words.json").write_text(json.dumps(words))

    def load(self, folder, texts):
        try:
            words = json.loads((folder / "words.json").read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"words.json: {error}") from error
        return self.opened([set(chunk) for chunk in words])

    def opened(self, words):
        return Sets(words)


class Sets(Index):
    def __init__(self, words):
        self.words = words

    def neighbours(self, queries, k, exclude=None):
        exclude = [(0, 0)] * len(queries) if exclude is None else exclude
        numbers = np.full((len(queries), k), -1)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for row, (query, (first, last)) in enumerate(zip(queries, exclude, strict=True)):
            near = [len(chunk & set(query.split())) for chunk in self.words]
            left = [n for n in self.left(first, last) if 0 <= n < len(near)]
            best = sorted(left, key=lambda n: (-near[n], n))[:k]
            numbers[row, : len(best)], scores[row, : len(best)] = best, [near[n] for n in best]
        return self.given(Found(numbers, scores))

    def left(self, first, last):
        return [n for n in range(len(self.words)) if not first <= n < last]

    def given(self, found):
        return found


class Gives:
    """A retriever whose index has one method changed."""

    def __init_subclass__(cls, **changed):
        cls.index = type("Changed", (Sets,), changed)

    def opened(self, words):
        return self.index(words)


class Forgets(Gives, Shared, left=lambda self, first, last: range(len(self.words))):
    """Excludes nothing."""


class ForgetsTheLast(Gives, Shared, left=lambda self, first, last: [*range(first), *range(last - 1, len(self.words))]):
    """Excludes one too few."""


class Farthest(Gives, Shared, given=lambda self, found: Found(found.numbers[:, ::-1], found.scores[:, ::-1])):
    """Gives the last first."""


class Other(Gives, Shared, given=lambda self, found: Found(np.maximum(found.numbers - 1, -1), found.scores)):
    """Gives the chunk before."""


class Again(Gives, Shared, given=lambda self, found: Found(np.maximum(found.numbers, 0), found.scores)):
    """Gives the first chunk where there are no more."""


class OfTheFirst(Gives, Shared, given=lambda self, found: Found(found.numbers, found.scores - (len(found.scores) > 1))):
    """Scores of a batch are others than those of one query."""


class GoesOn(Shared):
    """Takes no notice of what ends it."""

    def build(self, texts, folder, progress):
        super().build(texts, folder, lambda more: None)
        with suppress(Exception):
            progress(len(texts))


class CountsTwice(Shared):
    """Tells progress of each text when it reads it and when it has written it."""

    def build(self, texts, folder, progress):
        super().build(texts, folder, progress)
        progress(len(texts))


class KeepsHalf(Shared):
    """Takes for whole what a kill has left."""

    def build(self, texts, folder, progress):
        path = folder / "words.json"
        if path.exists():
            progress(len(texts))
            return
        path.write_text(json.dumps([text.split() for text in texts[: len(texts) // 2]]))
        progress(len(texts) // 2)
        super().build(texts, folder, progress)


class Trusting(Shared):
    """Takes an unreadable file for an empty one."""

    def load(self, folder, texts):
        try:
            return super().load(folder, texts)
        except UserError:
            return Sets([set()] * len(texts))


class Control(Other):
    control = True


@pytest.mark.parametrize("component", [Bytes, Shared, Control])
def test_what_has_no_fault_keeps_the_laws(component):
    assert broken(component) == {}


@pytest.mark.parametrize(
    ("component", "law"),
    [
        (Long, "vectors"),
        (Double, "vectors"),
        (OfTheBatch, "texts apart"),
        (Deaf, "texts apart"),
        (EachItsOwn, "texts apart"),
        (Forgets, "exclusion"),
        (ForgetsTheLast, "exclusion"),
        (Farthest, "search"),
        (Other, "search"),
        (Again, "search"),
        (OfTheFirst, "search"),
        (GoesOn, "index"),
        (CountsTwice, "index"),
        (KeepsHalf, "index"),
        (Trusting, "cut short"),
    ],
)
def test_a_fault_breaks_its_law(component, law):
    assert law in broken(component)
