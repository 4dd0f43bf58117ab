"""Exercise `program`: what a small program makes of its variables, line by line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from operator import add, mul, sub
from typing import ClassVar

from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.exercises import Exercises

NAMES = ("x", "y", "z", "w")
OUTPUT = "output"
OPERATORS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul}
#: Values lie between this and its negative.
VALUE = 999
ASSIGNMENT = re.compile(r"(\w+) = (\w+)(?: ([-+*]) (\w+))?")
VARIABLE = re.compile(r'"(\w+)": (-?\d+)')
STATE, LINE = "state: ", "line: "


class Program(Exercises):
    """`length` assignments that could be Python, the last to `output`, whose value is the answer.

    As the traces of Nye et al.: the variables before the first line, then each line and the variables behind it.
    """

    lengths: ClassVar = (2, 6)

    def drawn(self, length: int, draws: Draws) -> str:
        lines: list[str] = []
        state: dict[str, int] = {}
        while len(lines) < length:
            line = _assignment(OUTPUT if len(lines) == length - 1 else draws.one(NAMES), list(state), draws)
            after = executed(line, state)
            if all(abs(value) <= VALUE for value in after.values()):
                lines.append(line)
                state = after
        return "\n".join(lines)

    def length(self, text: str) -> int:
        return len(text.splitlines())

    def answer(self, text: str) -> str:
        state: dict[str, int] = {}
        for line in text.splitlines():
            state = executed(line, state)
        return str(state[OUTPUT])

    def following(self, text: str, lines: Items[str]) -> str | None:
        program = text.splitlines()
        if not lines:
            return STATE + json.dumps({})
        if len(lines) % 2:
            done = len(lines) // 2
            return None if done == len(program) else LINE + program[done]
        return STATE + json.dumps(executed(lines[-1].removeprefix(LINE), _state(lines[-2])))

    def concluded(self, text: str, lines: Items[str]) -> str:
        return str(_state(lines[-1])[OUTPUT])


def executed(line: str, state: Mapping[str, int]) -> dict[str, int]:
    """The variables behind an assignment."""
    found = ASSIGNMENT.fullmatch(line)
    assert found is not None, line
    name, first, operator, second = found.groups()
    value = _value(first, state)
    if operator:
        value = OPERATORS[operator](value, _value(second, state))
    return {**state, name: value}


def _assignment(name: str, known: Items[str], draws: Draws) -> str:
    """A value of variables that are known, of which it takes one where there is any, and of numbers."""
    first = draws.one(known) if known else str(draws.below(10))
    if name != OUTPUT and draws.random() < 0.3:
        return f"{name} = {draws.below(10)}"
    second = draws.one(known) if known and draws.random() < 0.5 else str(draws.below(10))
    return f"{name} = {first} {draws.one(list(OPERATORS))} {second}"


def _value(term: str, state: Mapping[str, int]) -> int:
    return int(term) if term.isdigit() else state[term]


def _state(line: str) -> dict[str, int]:
    return {name: int(value) for name, value in VARIABLE.findall(line)}
