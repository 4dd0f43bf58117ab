"""Exercise `parity`: whether there are an odd number of ones."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import ClassVar

from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.exercises import Exercises


class Parity(Exercises):
    """`length` bits, and 1 where an odd number of them are 1, else 0. A line holds a bit, and the parity so far."""

    lengths: ClassVar = (8, 16)

    def drawn(self, length: int, draws: Draws) -> str:
        return " ".join(draws.one("01") for _ in range(length))

    def length(self, text: str) -> int:
        return len(text.split())

    def answer(self, text: str) -> str:
        return str(text.count("1") % 2)

    def following(self, text: str, lines: Items[str]) -> str | None:
        bits = text.split()
        if len(lines) == len(bits):
            return None
        bit = bits[len(lines)]
        return f"{bit} : {int(bit) ^ _parity(lines)}"

    def concluded(self, text: str, lines: Items[str]) -> str:
        return str(_parity(lines))

    def choices(self, line: str, place: int) -> str:
        return "01"


def _parity(lines: Items[str]) -> int:
    return int(lines[-1].partition(" : ")[2]) if lines else 0
