"""Exercise `sorting`: the smallest of what is left, again and again."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import ClassVar

from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.exercises import Exercises


class Sorting(Exercises):
    """`length` digits in ascending order. A line holds those that are left, and those that are sorted.

    3 1 2 gives "3 1 2 ,", "3 2 , 1", "3 , 1 2" and ", 1 2 3".
    """

    lengths: ClassVar = (3, 8)

    def drawn(self, length: int, draws: Draws) -> str:
        return " ".join(str(draws.below(10)) for _ in range(length))

    def length(self, text: str) -> int:
        return len(text.split())

    def answer(self, text: str) -> str:
        return " ".join(sorted(text.split()))

    def following(self, text: str, lines: Items[str]) -> str | None:
        if not lines:
            return f"{text} ,"
        left, _, done = lines[-1].partition(",")
        rest = left.split()
        if not rest:
            return None
        smallest = min(rest)
        rest.remove(smallest)
        return " ".join([*rest, ",", *done.split(), smallest])

    def concluded(self, text: str, lines: Items[str]) -> str:
        return " ".join(lines[-1].partition(",")[2].split())
