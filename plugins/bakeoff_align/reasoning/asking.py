"""What a model says to prompts that are begun for it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.dialogue import Dialogue, Turn
from bakeoff.parts.samplers import Greedy

from bakeoff_align.inference.questions import Questions


class Prompt(NamedTuple):
    """The turns so far, and how the model's own has begun."""

    turns: tuple[Turn, ...]
    begun: str = ""

    @classmethod
    def instead(cls, dialogue: Dialogue, text: str, begun: str) -> Prompt:
        """A dialogue's prompt whose last turn says `text` instead."""
        *before, last = dialogue.prompt
        return cls((*before, Turn(last.role, text)), begun)


class Asking:
    """The measured model's likeliest answers.

    Parameters
    ----------
    most : tokens of an answer, at most. told : called with the number of answers so far.
    """

    def __init__(self, questions: Questions, most: int, told: Callable[[int], None]):
        self.questions, self.most, self.told = questions, most, told
        self.limit = questions.measured.model.context.max_length
        self.answered = 0

    def ids(self, prompt: Prompt) -> list[int]:
        data = self.questions.measured.data
        assert data.template is not None
        return data.template.prompt(prompt.turns, data.tokenizer) + data.tokenizer.encode(prompt.begun)

    def tokens(self, text: str) -> int:
        """How many a text takes."""
        return len(self.questions.measured.data.tokenizer.encode(text))

    def left(self, prompts: Items[Prompt]) -> int:
        """Tokens for which there is room behind the longest of the prompts."""
        return self.limit - max(len(self.ids(prompt)) for prompt in prompts)

    def demand(self, prompts: Items[Prompt], wanted: int, what: str) -> int:
        """How many tokens an answer may have; `CapabilityError` where `wanted` of them have no room."""
        left = self.left(prompts)
        if left < wanted:
            raise CapabilityError(
                f"{what} takes {self.limit - left + wanted} tokens, but the model's max_length is {self.limit}"
            )
        return min(self.most, left)

    def say(self, prompts: Items[Prompt], purpose: str, *, most: int | None = None, stop: Items[str] = ()) -> list[str]:
        """The answer to each prompt; "" where it has no room for one."""
        rows = [self.ids(prompt) for prompt in prompts]
        asked = [number for number, row in enumerate(rows) if len(row) < self.limit]
        said = [""] * len(rows)
        found = self.questions.continued(
            [rows[number] for number in asked],
            copies=1,
            sampler=Greedy(),
            most=self.most if most is None else most,
            purpose=purpose,
            stop=stop,
        )
        for place, (completion,) in found:
            said[asked[place]] = completion.text
            self.answered += 1
            self.told(self.answered)
        return said
