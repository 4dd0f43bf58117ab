"""Exercise `polynomial`: its value, term by term."""

from __future__ import annotations

import re
from collections.abc import Sequence as Items
from typing import ClassVar

from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.exercises import Exercises

#: Coefficients and x lie between these and their negatives, and values too.
COEFFICIENT, PLACE, VALUE = 10, 10, 1000
TERM = re.compile(r"(-?)(\d*)\*?(x?)(?:\*\*(\d+))?")


class Polynomial(Exercises):
    """A polynomial in x of degree `length` with whole coefficients, as Nye et al. have them: each term, then the total.

    Evaluate -7*x**2 + 7*x + 5 at x = 1 gives "-7*x**2: -7", "7*x: 7", "5: 5", and the answer "total: 5".
    """

    lengths: ClassVar = (1, 3)

    def drawn(self, length: int, draws: Draws) -> str:
        while True:
            coefficients = [draws.between(-COEFFICIENT, COEFFICIENT) for _ in range(length + 1)]
            x = draws.between(-PLACE, PLACE)
            if coefficients[0] and abs(_value(coefficients, x)) <= VALUE:
                return asked(coefficients, x)

    def length(self, text: str) -> int:
        return max(power for _, power in _terms(text)[0].values())

    def answer(self, text: str) -> str:
        terms, x = _terms(text)
        return f"total: {sum(factor * x**power for factor, power in terms.values())}"

    def following(self, text: str, lines: Items[str]) -> str | None:
        terms, x = _terms(text)
        if len(lines) == len(terms):
            return None
        name, (factor, power) = list(terms.items())[len(lines)]
        return f"{name}: {factor * x**power}"

    def concluded(self, text: str, lines: Items[str]) -> str:
        return f"total: {sum(int(line.partition(': ')[2]) for line in lines)}"


def asked(coefficients: Items[int], x: int) -> str:
    """The text of an exercise; coefficients from the highest power down, those of zero left out."""
    highest = len(coefficients) - 1
    terms = [_term(factor, highest - i) for i, factor in enumerate(coefficients) if factor]
    polynomial = " + ".join(terms).replace("+ -", "- ")
    return f"Evaluate {polynomial} at x = {x}"


def _term(factor: int, power: int) -> str:
    if not power:
        return str(factor)
    sign, size = "-" if factor < 0 else "", "" if abs(factor) == 1 else f"{abs(factor)}*"
    return sign + size + ("x" if power == 1 else f"x**{power}")


def _terms(text: str) -> tuple[dict[str, tuple[int, int]], int]:
    """Each term with its coefficient and power, and x."""
    polynomial, _, x = text.removeprefix("Evaluate ").partition(" at x = ")
    found = {}
    for term in polynomial.replace("- ", "+ -").split(" + "):
        match = TERM.fullmatch(term)
        assert match is not None, term
        sign, size, variable, power = match.groups()
        found[term] = (int(f"{sign}{size or 1}"), int(power or 1) if variable else 0)
    return found, int(x)


def _value(coefficients: Items[int], x: int) -> int:
    value = 0
    for factor in coefficients:
        value = value * x + factor
    return value
