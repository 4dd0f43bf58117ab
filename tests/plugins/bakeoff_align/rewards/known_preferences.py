"""Preferences between short texts by a Bradley-Terry model that is known."""

import math
import random

import bakeoff
from bakeoff.interfaces import Corpus, Dialogue, Turn
from bakeoff.registry import register

#: What each letter is worth.
WORTH = {"a": 1.0, "b": 0.0, "c": 0.0, "d": -0.5}
LENGTH = 6

MIXERS = {
    "attention": {"use": "attention", "n_heads": 2, "position": {"use": "rope"}},
    "recurrent": {"use": "min_gru"},
}


def reward(text):
    """What a text is worth, to those who prefer."""
    return sum(WORTH[letter] for letter in text)


def probability(text, other):
    """Of preferring a text to another one."""
    return 1 / (1 + math.exp(reward(other) - reward(text)))


@register("known_preferences")
class KnownPreferences(Corpus):
    """`pairs` of two texts that are drawn evenly, one of which was preferred."""

    def __init__(self, *, pairs: int, seed: int = 0):
        self.pairs, self.seed = pairs, seed

    def documents(self, split):
        yield from (dialogue.completion for dialogue in self.dialogues(split))

    def dialogues(self, split):
        draw = random.Random(f"{split} {self.seed}")
        for _ in range(self.pairs):
            one, other = ("".join(draw.choices("abcd", k=draw.randint(1, LENGTH))) for _ in range(2))
            if one == other:
                continue
            if draw.random() >= probability(one, other):
                one, other = other, one
            yield Dialogue(prompt=(Turn("user", "?"),), completion=one, rejected=other)

    def fingerprint(self):
        return f"known preferences {self.pairs} {self.seed}"

    @property
    def licence(self):
        return "none"


def preferring(mixer="attention", **changes):
    """A recipe that learns the preferences; changed by path."""
    layer = {"use": "pre_norm", "mixer": MIXERS[mixer], "feed_forward": {"use": "gated_mlp", "width": 32}}
    head = {"use": "scored"}
    told = {
        "name": "preferring",
        "model": {"d_model": 16, "depth": 1, "pattern": ["layer"], "blocks": {"layer": layer}, "head": head},
        "data": {
            "corpus": {"use": "known_preferences", "pairs": 40},
            "tokenizer": {"use": "byte"},
            "template": {"use": "chat"},
            "length": 128,
            "batch_tokens": 1024,
        },
        "objective": {"use": "bradley_terry"},
        "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2},
        "trainer": {"max_steps": 1},
        "validation": {"tokens": 512},
    }
    return bakeoff.recipe(told, {path.replace("__", "."): value for path, value in changes.items()})
