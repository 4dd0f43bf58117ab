"""Faults planted in what corpora have to be answered."""

from __future__ import annotations

import pytest
from bakeoff.errors import UserError
from bakeoff.interfaces import Corpus, Dialogue, Turn
from bakeoff.testing import check


def asked(text: str, **more) -> Dialogue:
    return Dialogue(prompt=(Turn("user", text),), completion="a\nb", **more)


class Sound(Corpus):
    licence = "none"
    train = (asked("1", steps=("a\n", "b"), step_labels=(1.0, 0.0), details={"n": [1]}), asked("2"))
    held = (asked("3"),)

    def dialogues(self, split):
        if split not in ("train", "validation"):
            raise UserError(split)
        return iter(self.train if split == "train" else self.held)

    def documents(self, split):
        return (str(dialogue) for dialogue in self.dialogues(split))

    def fingerprint(self):
        return "0"


class SharesPrompts(Sound):
    held = (asked("2", rejected="c"),)


class Nothing(Sound):
    held = ()


class NotPlain(Sound):
    held = (asked("3", details={"pair": (1, 2)}),)


class NoJson(Sound):
    held = (asked("3", details={"numbers": {1}}),)


class OtherSteps(Sound):
    held = (asked("3", steps=("a", "b"), step_labels=(1.0, 1.0)),)


class Unlabelled(Sound):
    held = (asked("3", steps=("a\n", "b")),)


class AnySplit(Sound):
    def dialogues(self, split):
        return iter(self.train if split == "train" else self.held)


class OtherOrder(Sound):
    made = 0

    def __init__(self):
        type(self).made += 1
        self.turned = self.made % 2

    def dialogues(self, split):
        found = list(super().dialogues(split))
        return iter(found[::-1] if self.turned else found)


def test_a_sound_one_keeps_the_law() -> None:
    check(Sound, laws=["dialogues"]).raise_for_failures()


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (SharesPrompts, "both splits hold the prompt (Turn(role='user', text='2'),)"),
        (Nothing, "dialogues('validation') yields nothing"),
        (NotPlain, "has details that JSON does not give back as they were: {'pair': (1, 2)}"),
        (NoJson, "has details that JSON does not hold: Object of type set"),
        (OtherSteps, "has steps that do not add up to its completion"),
        (Unlabelled, "has 2 steps and 0 labels of steps"),
        (AnySplit, "dialogues('test') is accepted"),
        (OtherOrder, "dialogues('train') of a second object differ, or come in another order"),
    ],
)
def test_planted_faults_are_caught(component: type[Corpus], message: str) -> None:
    report = check(component, laws=["dialogues"])
    assert any(message in finding.reason for finding in report.failures), str(report)
