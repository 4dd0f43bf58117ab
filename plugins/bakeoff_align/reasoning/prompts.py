"""Prompts that make a model think aloud, to the byte, and what is read out of what it says.

Zero-shot: Kojima et al. 2022, "Large Language Models are Zero-Shot Reasoners", arXiv:2205.11916, in two stages.
Few-shot: Wei et al. 2022, "Chain-of-Thought Prompting Elicits Reasoning in Large Language Models", arXiv:2201.11903.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence as Items
from decimal import Decimal
from typing import NamedTuple

from bakeoff_align.rewards.numeric_match import numbers

TRIGGER = "Let's think step by step."
#: Behind the thought.
EXTRACTION = " Therefore, the answer (arabic numerals) is"
#: Before the answer of an example.
CONCLUSION = "The answer is"
#: Begins another question: an answer ends before it.
NEXT = "\nQ:"
_APART = re.compile(r"(?<=\d) (?=\d(?!\d))(?<!\d\d )")


class Shown(NamedTuple):
    """An example: a question, what leads to its answer, and the answer."""

    question: str
    thought: str
    answer: str


class Thought(NamedTuple):
    """What a model said in the two stages."""

    thought: str
    conclusion: str


def zero_shot(question: str) -> str:
    """The prompt of the first stage."""
    return f"Q: {question}\nA: {TRIGGER}"


def extraction(prompt: str, thought: str) -> str:
    """The prompt of the second stage, after the first one's and what the model made of it."""
    return f"{prompt}{thought}{EXTRACTION}"


def two_stages(say: Callable[[list[str]], list[str]], questions: Items[str]) -> list[Thought]:
    """What the model thinks, and what it concludes; `say` is called twice, with a prompt for each question."""
    prompts = [zero_shot(question) for question in questions]
    thoughts = say(prompts)
    conclusions = say([extraction(*each) for each in zip(prompts, thoughts, strict=True)])
    return [Thought(*each) for each in zip(thoughts, conclusions, strict=True)]


def few_shot(shown: Items[Shown], question: str) -> str:
    """The prompt with examples before the question."""
    told = [f"Q: {one.question}\nA: {one.thought} {CONCLUSION} {one.answer}.\n\n" for one in shown]
    return "".join([*told, f"Q: {question}\nA:"])


def first_number(text: str) -> Decimal | None:
    """The first number in a text, as a conclusion is read: commas, a dollar sign and a full stop are no part of it."""
    found = numbers(joined(text))
    return found[0].value if found else None


def concluded(output: str) -> str:
    """What a model that was shown examples concludes: behind the last "The answer is", or else the last number."""
    _, said, conclusion = output.rpartition(CONCLUSION)
    if said:
        return conclusion
    found = numbers(joined(output))
    return str(found[-1].value) if found else output


def agrees(conclusion: str, answer: str) -> bool:
    """Whether a conclusion begins with the right answer: by its first number, or, where that has none, by its text."""
    right = first_number(answer)
    if right is not None:
        return first_number(conclusion) == right
    return _bare(conclusion) == _bare(answer)


def joined(text: str) -> str:
    """The text with digits that stand apart, as in 8 6, put together to a number."""
    return _APART.sub("", text)


def _bare(text: str) -> str:
    return text.strip(" \n.\"'").casefold()
