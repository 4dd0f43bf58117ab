"""What an output says in the end."""

from __future__ import annotations

OPEN, CLOSE = "<scratch>", "</scratch>"


def final_answer(output: str) -> str:
    """What stands behind the scratchpad, or the whole text where there is none, without space around it.

    A scratchpad that is begun and not closed has no answer: "".
    """
    thought, closed, answer = output.partition(CLOSE)
    if closed:
        return answer.strip()
    return "" if OPEN in thought else thought.strip()


def cut(text: str) -> tuple[str, ...]:
    """The lines of a text, each with its end: its steps, which joined give the text."""
    return tuple(text.splitlines(keepends=True))


def step_labels(steps: tuple[str, ...], right: tuple[str, ...]) -> tuple[float, ...]:
    """1 for each step that stands in the same place among the right ones, else 0."""
    places = range(len(steps))
    return tuple(float(i < len(right) and steps[i].rstrip("\n") == right[i].rstrip("\n")) for i in places)
