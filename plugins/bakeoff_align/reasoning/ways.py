"""Ways of asking a question, with what is said and concluded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import NamedTuple

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.dialogue import Dialogue
from bakeoff.interfaces.reward import Reward, Sample
from bakeoff.parts.judging import scores

from bakeoff_align.reasoning.asking import Asking, Prompt
from bakeoff_align.reasoning.prompts import (
    CONCLUSION,
    EXTRACTION,
    NEXT,
    Shown,
    agrees,
    concluded,
    few_shot,
    two_stages,
    zero_shot,
)
from bakeoff_align.scratchpad.exercises import CLOSE, OPEN

#: Tokens that a conclusion takes at most.
CONCLUDING = 32


class Reply(NamedTuple):
    """What was said, what was concluded from it, and whether that is right."""

    said: str
    conclusion: str
    right: bool


class Way(ABC):
    """One way of asking."""

    words: str
    stages: int = 1
    """Answers to a question."""

    @abstractmethod
    def replies(self, asking: Asking, dialogues: Items[Dialogue]) -> list[Reply]:
        """One for each dialogue. `CapabilityError` where the model, or its training, leaves no room for it."""


class Judged(Way):
    """Asked as in training; what the judge scores 1 or more is right."""

    def __init__(self, judge: Reward):
        self.judge = judge

    def answered(
        self, asking: Asking, dialogues: Items[Dialogue], begun: str = "", stop: Items[str] = ()
    ) -> list[Reply]:
        """After the prompts, and `begun` behind them."""
        prompts = [Prompt(dialogue.prompt, begun) for dialogue in dialogues]
        most = asking.demand(prompts, 1, self.words)
        said = asking.say(prompts, self.words, most=most, stop=stop)
        samples = [
            Sample(dialogue, begun + text, asking.ids(Prompt(dialogue.prompt)), [])
            for dialogue, text in zip(dialogues, said, strict=True)
        ]
        right = [score >= 1 for score in scores(self.judge, samples)]
        return [Reply(text, text.rpartition(CLOSE)[2].strip(), hit) for text, hit in zip(said, right, strict=True)]


class Direct(Judged):
    """The answer at once: where the model learnt from scratchpads, the line behind one that is closed already."""

    words = "direct answer"

    def replies(self, asking: Asking, dialogues: Items[Dialogue]) -> list[Reply]:
        if thinks(dialogues):
            return self.answered(asking, dialogues, f"{OPEN}\n{CLOSE}\n", ["\n"])
        return self.answered(asking, dialogues)


class Scratchpad(Judged):
    """As the model learnt it, where the completions that it learnt from have scratchpads."""

    words = "scratchpad"

    def replies(self, asking: Asking, dialogues: Items[Dialogue]) -> list[Reply]:
        if not thinks(dialogues):
            raise CapabilityError("the completions of the corpus have no scratchpads")
        return self.answered(asking, dialogues)


class ZeroShot(Way):
    """A thought first, and then what it comes to."""

    words = "zero-shot chain of thought"
    stages = 2

    def replies(self, asking: Asking, dialogues: Items[Dialogue]) -> list[Reply]:
        questions = [dialogue.prompt[-1].text for dialogue in dialogues]
        asked = [f"Q: {question}" for question in questions]

        def prompted(texts: list[str]) -> list[Prompt]:
            """The question is the user's; what stands behind it, the model has said."""
            split = zip(dialogues, asked, texts, strict=True)
            return [Prompt.instead(each, own, text.removeprefix(f"{own}\n")) for each, own, text in split]

        concluding = asking.tokens(EXTRACTION) + CONCLUDING
        first = prompted([zero_shot(question) for question in questions])
        thinking = asking.demand(first, concluding + 1, self.words)
        room = iter([min(thinking, asking.left(first) - concluding), CONCLUDING])

        def say(texts: list[str]) -> list[str]:
            return asking.say(prompted(texts), self.words, most=next(room), stop=[NEXT])

        found = []
        for dialogue, one in zip(dialogues, two_stages(say, questions), strict=True):
            assert dialogue.answer is not None
            right = agrees(one.conclusion, dialogue.answer)
            found.append(Reply(f"{one.thought}{EXTRACTION}{one.conclusion}", one.conclusion, right))
        return found


class FewShot(Way):
    """Examples before the question: as many of those that are given, the first ones, as have room.

    `shown` holds those that the last questions were asked with.
    """

    words = "few-shot chain of thought"

    def __init__(self, examples: Items[Dialogue]):
        self.examples = [_shown(each) for each in examples]
        self.shown: list[Shown] = []

    def replies(self, asking: Asking, dialogues: Items[Dialogue]) -> list[Reply]:
        prompts, most = self._prompts(asking, dialogues)
        said = asking.say(prompts, self.words, most=most, stop=[NEXT])
        found = []
        for dialogue, text in zip(dialogues, said, strict=True):
            assert dialogue.answer is not None
            conclusion = concluded(text)
            found.append(Reply(text, conclusion, agrees(conclusion, dialogue.answer)))
        return found

    def _prompts(self, asking: Asking, dialogues: Items[Dialogue]) -> tuple[list[Prompt], int]:
        """With the most examples that leave room for what the longest of them says, and that room."""
        if not self.examples:
            raise CapabilityError("no example of the train split has a completion and an answer")
        for count in range(len(self.examples), 0, -1):
            self.shown = self.examples[:count]
            texts = [few_shot(self.shown, dialogue.prompt[-1].text) for dialogue in dialogues]
            pairs = zip(dialogues, texts, strict=True)
            prompts = [Prompt.instead(each, text.removesuffix("\nA:"), "A:") for each, text in pairs]
            longest = max(asking.tokens(f" {one.thought} {CONCLUSION} {one.answer}.") for one in self.shown)
            if count == 1 or asking.left(prompts) >= longest:
                return prompts, asking.demand(prompts, longest, f"{self.words}, with one example,")
        raise AssertionError("one example is the fewest")


def thinks(dialogues: Items[Dialogue]) -> bool:
    """Whether there are scratchpads in what the model is to say."""
    return any(CLOSE in (dialogue.completion or "") for dialogue in dialogues)


def _shown(dialogue: Dialogue) -> Shown:
    assert dialogue.completion is not None
    assert dialogue.answer is not None
    return Shown(dialogue.prompt[-1].text, dialogue.completion, dialogue.answer)
