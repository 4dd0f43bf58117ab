"""Reward `numeric_match`: the final answer holds the right number, however it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence as Items
from decimal import Decimal
from typing import Any, NamedTuple

from bakeoff.errors import UserError
from bakeoff.interfaces import Reward, Sample

from bakeoff_align.rewards.final import MARKERS, check_markers, final_answer, right_answer

#: A minus sign behind a digit, a letter or a bracket is one of subtraction.
NUMBER = re.compile(
    r"(?P<minus>(?<![\w.)])[-−])?\$?(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<decimals>(?<=\d)\.\d+|(?<!\d)\.\d+)?"
    r"(?P<percent>(?<=\d)\s?%)?"
)
WHICH = ("last", "first")


class Number(NamedTuple):
    """A number as it was written; `percent`: with the sign."""

    value: Decimal
    percent: bool

    def equals(self, other: Number, tolerance: Decimal) -> bool:
        """Within the tolerance. 50% is 0.5, and, as many write it, 50; but it is no 0.5%."""
        near = abs(self.value - other.value) <= tolerance
        if near or self.percent == other.percent:
            return near
        one, two = (each.value / 100 if each.percent else each.value for each in (self, other))
        return abs(one - two) <= tolerance

    def plain(self) -> str:
        """Without what may be written in several ways: 1,000.50 and $1000.5 are 1000.5."""
        digits = f"{self.value:f}" if self.value else "0"
        shortest = digits.rstrip("0").rstrip(".") if "." in digits else digits
        return f"{shortest}%" if self.percent else shortest


class NumericMatch(Reward):
    """1 where a number of the final answer is that of `dialogue.answer`, else 0.

    Numbers may have a minus sign, commas before each three digits, decimals, a dollar sign and one of percent; 50% is
    0.5 and, as many write it, 50. They are compared exactly, as decimals.

    Parameters
    ----------
    markers : the final answer stands behind the last place of any of them; a text without one is all final answer.
    which : of its numbers, the "last" or the "first".
    tolerance : by how much it may differ.
    """

    def __init__(self, *, markers: Items[str] = MARKERS, which: str = "last", tolerance: float = 0.0):
        check_markers("reward 'numeric_match'", markers)
        if which not in WHICH:
            raise UserError(f"reward 'numeric_match': which is '{which}'; it is one of {', '.join(WHICH)}")
        if not 0 <= tolerance < float("inf"):
            raise UserError(f"reward 'numeric_match': tolerance is {tolerance}; it must be 0 or more")
        self.markers, self.which, self.tolerance = tuple(markers), which, tolerance

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with every option."""
        return [{}, {"markers": ["answer:"], "which": "first", "tolerance": 0.01}]

    def score(self, samples: Items[Sample]) -> list[float]:
        return [float(self._matches(sample)) for sample in samples]

    def answer_of(self, text: str) -> str:
        """The number in a text that is compared, in plain digits; "" where there is none."""
        found = self._compared(text)
        return "" if found is None else found.plain()

    def _matches(self, sample: Sample) -> bool:
        right = numbers(right_answer("reward 'numeric_match'", sample))
        if not right:
            raise UserError(
                f"reward 'numeric_match' compares numbers, and the right answer {sample.dialogue.answer!r} holds none: "
                "use exact_match"
            )
        found = self._compared(sample.text)
        place = -1 if self.which == "last" else 0
        return found is not None and found.equals(right[place], Decimal(repr(self.tolerance)))

    def _compared(self, text: str) -> Number | None:
        """The number of a text that is compared."""
        found = numbers(final_answer(text, self.markers))
        return found[-1 if self.which == "last" else 0] if found else None


def numbers(text: str) -> list[Number]:
    """The numbers in a text, in order."""
    return [_number(match) for match in NUMBER.finditer(text) if match["digits"] or match["decimals"]]


def _number(match: re.Match[str]) -> Number:
    digits = (match["digits"] or "0").replace(",", "")
    value = Decimal(digits + (match["decimals"] or ""))
    return Number(value.copy_negate() if match["minus"] else value, match["percent"] is not None)
