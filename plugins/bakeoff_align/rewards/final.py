"""What an answer comes to in the end, after all that leads to it."""

from __future__ import annotations

from collections.abc import Sequence as Items

from bakeoff.errors import UserError
from bakeoff.interfaces import Sample

#: Behind the last of these stands the final answer: of a scratchpad (Nye et al. 2021), and of GSM8K.
MARKERS = ("</scratch>", "#### ")


def check_markers(owner: str, markers: Items[str]) -> None:
    """Raise `UserError` where a marker is empty."""
    if "" in markers:
        raise UserError(f"{owner}: markers holds an empty text, which stands everywhere; name texts, or none")


def final_answer(text: str, markers: Items[str]) -> str:
    """What stands behind the last place of any marker, all of the text where there is none; white space stripped."""
    places = [(text.rfind(marker), marker) for marker in markers]
    behind = max((at + len(marker) for at, marker in places if at >= 0), default=0)
    return text[behind:].strip()


def right_answer(owner: str, sample: Sample) -> str:
    """The right final answer; `UserError` where the dialogue has none."""
    answer = sample.dialogue.answer
    if answer is None:
        raise UserError(
            f"{owner} compares with the right answer, and a dialogue has none: its corpus must give `answer`, or use "
            f"a reward that needs none; the dialogue's prompt ends {asked(sample)[-60:]!r}"
        )
    return answer


def asked(sample: Sample) -> str:
    """What was said last before the answer; "" where nothing was."""
    turns = sample.dialogue.prompt
    return turns[-1].text if turns else ""
