"""What is right in an answer to an exercise, step by step: exact, for training and for judging process rewards."""

from __future__ import annotations

from bakeoff.interfaces.dialogue import Dialogue

from bakeoff_align.scratchpad.answers import cut, step_labels
from bakeoff_align.scratchpad.forms import form
from bakeoff_align.scratchpad.known import exercises


def judged(dialogue: Dialogue, output: str) -> tuple[float, ...]:
    """For each line of an answer to a dialogue of these corpora: 1 where it is the line that belongs there, else 0."""
    details = dialogue.details
    right = form(details["form"]).right(exercises(details["task"]), dialogue.prompt[-1].text)
    return step_labels(cut(output), cut(right))
