"""Prompts to the byte, and what is read out of answers."""

from decimal import Decimal

import pytest
from bakeoff_align.reasoning.prompts import (
    Shown,
    agrees,
    concluded,
    extraction,
    few_shot,
    first_number,
    two_stages,
    zero_shot,
)

# Kojima et al. 2022: "Q: [X]. A: [T]" and "[X'] [Z] [A]"
QUESTION = "A juggler can juggle 16 balls. Half are golf balls. How many golf balls are there?"
FIRST = f"Q: {QUESTION}\nA: Let's think step by step."
SECOND = f"{FIRST} Half of 16 is 8. Therefore, the answer (arabic numerals) is"


def test_zero_shot_takes_two_calls_with_these_prompts():
    calls = []

    def say(prompts):
        calls.append(prompts)
        return [" Half of 16 is 8."] if len(calls) == 1 else [" 8."]

    assert [tuple(each) for each in two_stages(say, [QUESTION])] == [(" Half of 16 is 8.", " 8.")]
    assert calls == [[FIRST], [SECOND]]
    assert (zero_shot(QUESTION), extraction(FIRST, " Half of 16 is 8.")) == (FIRST, SECOND)


def test_few_shot_shows_examples_before_the_question():
    shown = [Shown("1 + 1?", "One and one.", "2"), Shown("2 + 2?", "Two and two.", "4")]
    expected = "Q: 1 + 1?\nA: One and one. The answer is 2.\n\nQ: 2 + 2?\nA: Two and two. The answer is 4.\n\nQ: 3?\nA:"
    assert few_shot(shown, "3?") == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" 8.", "8"),
        (" $1,234.50.", "1234.50"),
        (" 1,234,567 people", "1234567"),
        (" about 3.14, not 3", "3.14"),
        (" -5 degrees", "-5"),
        (" $-7.5", "-7.5"),
        (" 12. And 13.", "12"),
        (" 0 8 6", "86"),
        (" two", None),
    ],
)
def test_the_first_number_is_the_answer(text, number):
    assert first_number(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("output", "answer", "right"),
    [
        (" 9 and 7. The answer is 16.", "16", True),
        (" The answer is 3. No: The answer is 16.", "16", True),
        (" The answer is 3. No: The answer is 16.", "3", False),
        (" 9 and 7 are 16", "16", True),  # without the words, the last number
        (" 16 is 9 and 7", "16", False),
        (" so The answer is Odd.", "odd", True),
        (" no idea", "16", False),
        (" The answer is 0 8 6.", "8 6", True),
        (" The answer is 5.", "total: 5", True),
    ],
)
def test_what_is_concluded_from_examples(output, answer, right):
    assert agrees(concluded(output), answer) == right
