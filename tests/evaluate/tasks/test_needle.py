"""Needles: where they stand, that a model that copies finds all of them, and that an untrained one finds none."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate.tasks.haystack import CITIES, Haystack, right
from bakeoff.evaluate.tasks.needle import TEMPLATE, Needle
from bakeoff.interfaces import Result
from bakeoff.parts.corpora.reviews import Reviews
from bakeoff.parts.tokenizers.bpe import BPETokenizer
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from torch import nn

TINY = {"lengths": 2, "depths": 3, "shortest": 240, "longest": 400, "rounds": 2}


class Held(NamedTuple):
    """All tokens so far, (B, t)."""

    tokens: torch.Tensor
    past: None = None


class Copies(nn.Module):
    """Writes after "The special magic CITY number is:" what first stood there; of bytes, one after another."""

    layers = ()

    def __init__(self):
        super().__init__()
        self.embedding = torch.zeros(1)

    def forward(self, sequence, state=None):
        tokens = sequence.tokens if state is None else torch.cat([state.tokens, sequence.tokens], 1)
        T = sequence.length
        logits = torch.zeros(len(tokens), T, 259)
        for row, seen in zip(logits, tokens.tolist(), strict=True):
            for t in range(max(0, T - 12), T):
                row[t, self.next(bytes(seen[: len(seen) - T + t + 1]))] = 50.0
        return Result(logits, None if state is None else Held(tokens))

    def next(self, text):
        asked = re.search(rb"The special magic (\w+) number is:([^:]*)$", text)
        found = asked and re.search(rb"The special magic %s number is:( \d+\n)" % asked[1], text)
        return found[1][len(asked[2])] if found and len(asked[2]) < len(found[1]) else ord("?")


class Head(nn.Module):
    """What the backbone gives are the logits."""

    def forward(self, logits, targets=None):
        if targets is None:
            return logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), None


class Oracle(nn.Module):
    """Finds the needle in its input and writes it."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = Copies(), Head()
        self.context = SimpleNamespace(max_length=2048, vocab_size=259)

    def empty_state(self, batch, max_length):
        return Held(torch.zeros(batch, 0, dtype=torch.long))


@pytest.fixture
def oracle(untrained):
    return dataclasses.replace(untrained(), model=Oracle())


def said(progress):
    return None


@pytest.mark.parametrize(
    "more", [{}, {"needles": 4, "asked": 3}, {"spacing": "sigmoid", "shortest": 250}], ids=["one", "several", "sigmoid"]
)
def test_a_model_that_copies_finds_all_of_them(oracle, more):
    more = {**more, "shortest": 320} if "asked" in more else more
    answer = Needle(**{**TINY, **more}).measure(oracle, said)
    assert (answer.figures["found"], answer.figures["worst"]) == (1.0, 1.0)
    assert answer.figures["nats"] < 1e-6
    assert answer.data["cells"]["values"] == [[1.0, 1.0]] * 3
    assert answer.html.count('class="p6">100</td>') == 6


def test_a_model_that_copies_the_wrong_needle_finds_none(oracle, monkeypatch):
    monkeypatch.setattr(Copies, "next", lambda self, text: ord("1"))
    found = Needle(**TINY).measure(oracle, said).figures
    assert (found["found"], found["worst"]) == (0.0, 0.0)
    assert found["nats"] > 10


def test_an_untrained_model_finds_none_and_pays_more_than_a_guess(untrained):
    found = Needle(lengths=1, depths=2, longest=256, rounds=1).measure(untrained(), said).figures
    assert (found["found"], found["worst"]) == (0.0, 0.0)
    assert found["nats"] > math.log(10)


@pytest.fixture(scope="module", params=[ByteTokenizer, partial(BPETokenizer, vocab_size=400)], ids=["bytes", "bpe"])
def haystack(request):
    corpus, tokenizer = Reviews(texts=60, validation=0.5), request.param()
    tokenizer.train(corpus.documents("train"))
    return Haystack(corpus, tokenizer, 600)


@pytest.mark.parametrize("depth", [0, 7.586, 33, 50, 92.414, 100])
@pytest.mark.parametrize("count", [1, 5])
def test_needles_stand_where_they_are_asked_to_and_numbers_stand_once(haystack, depth, count):
    numbers = random.Random(3)
    needles = haystack.draw(count, numbers)
    made = haystack.prompts(needles, asked=count, depth=depth, size=700, template=TEMPLATE, numbers=numbers)
    assert [each.digits for each in made] == list(needles.numbers.values())
    for city, prompt in zip(needles.numbers, made, strict=True):
        text = haystack.tokenizer.decode(prompt.ids)
        assert len(prompt.ids) == 700
        assert len(prompt.digits) == 7
        assert text.count(prompt.digits) == 1
        assert all(text.count(number) == 1 for number in needles.numbers.values())
        assert text.endswith(f"\nWhat is the special magic {city} number?\nThe special magic {city} number is:")
        place = prompt.places[0]
        assert haystack.tokenizer.decode(prompt.ids[place:]).startswith(f"\nThe special magic {city} number is: ")
        needle = [len(haystack.tokenizer.encode(needles.text(name))) for name in needles.numbers]
        hay = prompt.context.stop - prompt.context.start - sum(needle)
        before = [place - prompt.context.start] + [
            -len(haystack.tokenizer.encode(needles.text(name)))
            for other, name in zip(prompt.places[1:], [n for n in needles.numbers if n != city], strict=True)
            if other < place
        ]
        assert abs(sum(before) - depth / 100 * hay) <= 0.5
        assert haystack.tokenizer.decode(prompt.answer) == f" {prompt.digits}"


def test_the_text_begins_anew_where_it_ends(haystack):
    assert len(haystack.ids) >= 1200
    short = SimpleNamespace(documents=lambda split: iter(["", "abc"]))
    assert Haystack(short, ByteTokenizer(), 5).text == "abc" * 4
    empty = SimpleNamespace(documents=lambda split: iter([""]))
    with pytest.raises(UserError, match="holds no text to hide needles in"):
        Haystack(empty, ByteTokenizer(), 5)


def test_a_number_is_right_digit_by_digit():
    assert right(" 1234567\nand more", "1234567")
    assert right("1234567.", "1234567")
    assert not right(" 12345678", "1234567")
    assert not right("is 1234567", "1234567")
    assert not right(" 1234568", "1234567")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"asked": 3, "needles": 2}, f"asked is 3, needles 2; it takes 1 <= asked <= needles <= {len(CITIES)}"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"template": "{question}"}, r"template holds \{context\} 0 times; it takes it once"),
    ],
)
def test_slips(wrong, message):
    with pytest.raises(ValueError, match=message):
        Needle(**wrong)


def test_what_does_not_fit_is_told_with_both_numbers(untrained):
    with pytest.raises(UserError, match=r"a prompt of 64 tokens has no room for 1 needles .* take \d+ tokens"):
        Needle(shortest=80).measure(untrained(), said)
    with pytest.raises(CapabilityError, match=r"shortest is 600, more than the model's max_length of 512"):
        Needle(shortest=600).measure(untrained(), said)
    with pytest.raises(CapabilityError, match="an answer takes 8 tokens, but buffer is 4"):
        Needle(**TINY, buffer=4).measure(untrained(), said)
    learned = untrained({"use": "attention", "n_heads": 2}, **{"model.position": {"use": "learned_position"}})
    with pytest.raises(CapabilityError, match=r"LearnedPosition has weights for each of the 512 .* rows of 700 tokens"):
        Needle(**{**TINY, "longest": 700}).measure(learned, said)


def test_contexts_may_be_longer_than_those_of_training(untrained):
    found = Needle(**{**TINY, "longest": 700, "rounds": 1}).measure(untrained(), said)
    assert found.data["cells"]["lengths"] == [240, 700]
