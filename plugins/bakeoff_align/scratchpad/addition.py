"""Exercise `addition`: column by column, with a carry."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import ClassVar

from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.exercises import Exercises

#: Before the carry.
CARRY = "C: "


class Addition(Exercises):
    """Two numbers of `length` digits, to the byte as in figure 2 of Nye et al.

    A line holds the columns that are left, the digits that have been found, and the carry; the last one puts the carry
    in front, even where it is 0.
    """

    lengths: ClassVar = (1, 8)

    def drawn(self, length: int, draws: Draws) -> str:
        return asked(int(draws.digits(length)), int(draws.digits(length)))

    def length(self, text: str) -> int:
        return len(text.split("+")[0].split())

    def answer(self, text: str) -> str:
        return " ".join(str(sum(int(number.replace(" ", "")) for number in text.split("+"))))

    def following(self, text: str, lines: Items[str]) -> str | None:
        if not lines:
            return f"{text} ,  {CARRY}0"
        left, comma, known = lines[-1].partition(",")
        if not comma:
            return None
        found, _, carry = known.partition(CARRY)
        if not left.strip():
            return " ".join([carry, *found.split()])
        a, b = (number.split() for number in left.split("+"))
        tens, ones = divmod(int(a.pop()) + int(b.pop()) + int(carry), 10)
        rest = f"{' '.join(a)} + {' '.join(b)} , " if a else ", "
        return f"{rest}{' '.join([str(ones), *found.split()])} {CARRY}{tens}"

    def concluded(self, text: str, lines: Items[str]) -> str:
        return " ".join(str(int(lines[-1].replace(" ", ""))))

    def choices(self, line: str, place: int) -> str:
        return "01" if line[:place].endswith(CARRY) else super().choices(line, place)


def asked(a: int, b: int) -> str:
    """The text of an exercise; the shorter number gets zeros in front."""
    width = len(str(max(a, b)))
    return " + ".join(" ".join(str(number).zfill(width)) for number in (a, b))
