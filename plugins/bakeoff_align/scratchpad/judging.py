"""What is right in an answer to an exercise, step by step: exact, for training and for judging process rewards."""

from __future__ import annotations

from collections.abc import Sequence as Items

from bakeoff.interfaces.dialogue import Dialogue

from bakeoff_align.scratchpad.forms import form
from bakeoff_align.scratchpad.known import exercises
from bakeoff_align.steps import cut

#: Ends a step.
SEPARATOR = "\n"


def judged(dialogue: Dialogue, output: str) -> tuple[float, ...]:
    """For each line of an answer to a dialogue of these corpora: 1 where it is the line that belongs there, else 0."""
    details = dialogue.details
    right = form(details["form"]).right(exercises(details["task"]), dialogue.prompt[-1].text)
    return labels(cut(output, SEPARATOR), cut(right, SEPARATOR))


def labels(steps: Items[str], right: Items[str]) -> tuple[float, ...]:
    """1 for each step that stands in the same place among the right ones, else 0."""
    due = [*(step.rstrip(SEPARATOR) for step in right), *[None] * len(steps)]
    return tuple(float(step.rstrip(SEPARATOR) == other) for step, other in zip(steps, due, strict=False))
