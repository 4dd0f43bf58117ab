"""A model that draws each word by the word before it, from a table; and what tasks are given with it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from bakeoff.interfaces import Backbone, Capabilities, Head, LayerContext, Past, Result, Tokenizer
from bakeoff.interfaces.dialogue import Dialogue, Turn
from bakeoff.interfaces.reward import Reward
from bakeoff.model import LanguageModel
from torch import nn


class Words(Tokenizer):
    """One id a word."""

    def __init__(self, words):
        self.words = list(words)

    def train(self, texts):
        pass

    @property
    def text_size(self):
        return len(self.words)

    def encode(self, text):
        return [self.words.index(text)]

    def token_bytes(self, token):
        return self.words[token].encode() if token < self.text_size else b""

    def save(self, folder):
        raise NotImplementedError

    @classmethod
    def load(cls, folder):
        raise NotImplementedError


class State(NamedTuple):
    past: Past


class Last(Backbone):
    """Shows the head the word that was read last."""

    capabilities = Capabilities(padding=True, state=True)

    def __init__(self, context):
        super().__init__(context)
        self.embed = nn.Embedding(context.vocab_size, context.d_model)

    embedding = property(lambda self: self.embed.weight)
    layers = property(lambda self: nn.ModuleList())

    def empty_state(self, batch, max_length, dtype=None, device=None):
        return State(Past(batch, max_length))

    def forward(self, sequence, state=None):
        y = sequence.tokens[..., None].float()
        return Result(y, None if state is None else State(state.past.advance(sequence)))


class Table(Head):
    """What follows each word, with its probability."""

    def __init__(self, context: LayerContext, tokenizer: Words, follows: dict[str, dict[str, float]]):
        super().__init__(context)
        logits = torch.full((tokenizer.vocab_size, tokenizer.vocab_size), -torch.inf)
        logits[:, tokenizer.end] = 0
        for word, after in follows.items():
            (place,) = tokenizer.encode(word)
            logits[place, tokenizer.end] = -torch.inf
            for next_word, share in after.items():
                to = tokenizer.end if next_word == "end" else tokenizer.encode(next_word)[0]
                logits[place, to] = torch.tensor(share).log()
        self.logits = logits

    def forward(self, hidden, *_, **__):
        return self.logits[hidden[..., 0].long()]


class Judge(Reward):
    """As right as `right(text)` says; the answer is what stands before the first comma."""

    def __init__(self, right):
        self.right = right

    def score(self, samples):
        return [self.right(sample.text) for sample in samples]

    def answer_of(self, text):
        return text.partition(",")[0]


class Asked(NamedTuple):
    """Questions that are one word each, their prompts that word."""

    count: int
    word: str

    def dialogues(self, split):
        assert split == "validation"
        return (Dialogue(prompt=(Turn("user", self.word),)) for _ in range(self.count))

    def prompt(self, turns, tokenizer):
        return [token for turn in turns for token in tokenizer.encode(turn.text)]


@pytest.fixture
def judge():
    return Judge


@pytest.fixture
def measured():
    """`measured(follows, questions)`: the table as a model, asked as many questions, all of them "?"."""

    def make(follows, questions, max_length=16, seed=0):
        words = list(dict.fromkeys([*follows, *(w for after in follows.values() for w in after if w != "end")]))
        tokenizer, asked = Words(words), Asked(questions, "?")
        model = LanguageModel(
            d_model=1,
            vocab_size=tokenizer.vocab_size,
            max_length=max_length,
            backbone=Last,
            head=lambda context: Table(context, tokenizer, follows),
            tied_embedding=False,
        )
        data = SimpleNamespace(tokenizer=tokenizer, corpus=asked, template=asked)
        recipe = SimpleNamespace(seed_of=lambda name: seed)
        return SimpleNamespace(model=model, data=data, recipe=recipe, batch=64, length=max_length, autocast=nullcontext)

    return make
