"""Exercise `multiplication`: one product for each digit of the second number, added up as they come."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import ClassVar

from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.exercises import Exercises

#: Before the sum of the products so far.
TOTAL = "T: "


class Multiplication(Exercises):
    """Two numbers of `length` digits. A line holds what is left, the last product, and the sum so far.

    2 9 * 5 7 gives "2 9 * 5 7 ,  T: 0", "2 9 * 5 , 2 0 3 T: 2 0 3" and ", 1 4 5 0 T: 1 6 5 3".
    """

    lengths: ClassVar = (1, 4)

    def drawn(self, length: int, draws: Draws) -> str:
        return " * ".join(" ".join(draws.digits(length)) for _ in range(2))

    def length(self, text: str) -> int:
        return len(text.split("*")[0].split())

    def answer(self, text: str) -> str:
        a, b = (_number(part) for part in text.split("*"))
        return " ".join(str(a * b))

    def following(self, text: str, lines: Items[str]) -> str | None:
        if not lines:
            return f"{text} ,  {TOTAL}0"
        left, _, known = lines[-1].partition(",")
        if not left.strip():
            return None
        a, _, b = left.partition("*")
        *rest, digit = b.split()
        product = _number(a) * int(digit) * 10 ** (len(lines) - 1)
        total = _number(known.partition(TOTAL)[2]) + product
        told = f"{a.strip()} * {' '.join(rest)} , " if rest else ", "
        return f"{told}{' '.join(str(product))} {TOTAL}{' '.join(str(total))}"

    def concluded(self, text: str, lines: Items[str]) -> str:
        return " ".join(str(_number(lines[-1].partition(TOTAL)[2])))


def _number(digits: str) -> int:
    return int(digits.replace(" ", ""))
