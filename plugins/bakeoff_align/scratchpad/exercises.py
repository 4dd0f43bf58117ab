"""What every sort of exercise is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import ClassVar

from bakeoff_align.rewards.final import final_answer
from bakeoff_align.scratchpad.draws import Draws

#: Around a scratchpad; the answer stands behind it.
OPEN, CLOSE = "<scratch>", "</scratch>"
DIGITS = "0123456789"
#: A digit that no 0 may take the place of.
LEADING = re.compile(r"(?<!\d)\d(?=\d)|(?<=-)\d")


class Exercises(ABC):
    """One sort of exercise: what is asked, how it is worked out line by line, and what comes out.

    Every line of a scratchpad is worked out from the exercise and from the lines before it, as they stand. So what
    follows from a slip is known as well.
    """

    lengths: ClassVar[tuple[int, int]]
    """Shortest and longest, where none are asked for."""

    @abstractmethod
    def drawn(self, length: int, draws: Draws) -> str:
        """The text of an exercise."""

    @abstractmethod
    def length(self, text: str) -> int:
        """How long an exercise is: `drawn` gives those of the length that was asked for."""

    @abstractmethod
    def answer(self, text: str) -> str:
        """What is right, worked out without a scratchpad."""

    @abstractmethod
    def following(self, text: str, lines: Items[str]) -> str | None:
        """The line that follows from those before it; None behind the last."""

    @abstractmethod
    def concluded(self, text: str, lines: Items[str]) -> str:
        """The answer that follows from all lines."""

    def read(self, output: str) -> str:
        """The answer that an output gives, with a scratchpad or without."""
        return final_answer(output, (CLOSE,))

    def choices(self, line: str, place: int) -> str:
        """What may be written, by mistake, where `line` has a digit."""
        return DIGITS

    def worked_out(self, text: str, begun: Items[str] = ()) -> list[str]:
        """All lines of the scratchpad, the first of which are given."""
        lines = list(begun)
        while (line := self.following(text, lines)) is not None:
            lines.append(line)
        return lines

    def slipped(self, line: str, draws: Draws) -> str | None:
        """The line with another digit in one place, so that its numbers stay as long; None where it has no digit."""
        places = [found.start() for found in re.finditer(r"\d", line)]
        if not places:
            return None
        place = draws.one(places)
        never = {line[place], "0"} if LEADING.match(line, place) else {line[place]}
        others = [digit for digit in self.choices(line, place) if digit not in never]
        return line[:place] + draws.one(others) + line[place + 1 :]


def written(lines: Items[str], answer: str) -> str:
    """A scratchpad and the answer behind it."""
    return "\n".join([OPEN, *lines, CLOSE, answer])
