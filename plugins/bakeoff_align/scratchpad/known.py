"""The sorts of exercises, by name."""

from __future__ import annotations

import difflib

from bakeoff.errors import UserError

from bakeoff_align.scratchpad.addition import Addition
from bakeoff_align.scratchpad.exercises import Exercises
from bakeoff_align.scratchpad.multiplication import Multiplication
from bakeoff_align.scratchpad.parity import Parity
from bakeoff_align.scratchpad.polynomial import Polynomial
from bakeoff_align.scratchpad.program import Program
from bakeoff_align.scratchpad.sorting import Sorting

EXERCISES: dict[str, type[Exercises]] = {
    "addition": Addition,
    "multiplication": Multiplication,
    "parity": Parity,
    "polynomial": Polynomial,
    "program": Program,
    "sorting": Sorting,
}


def exercises(name: str) -> Exercises:
    """Those that are called so; `UserError` with the nearest name and all of them for another."""
    if name not in EXERCISES:
        found = difflib.get_close_matches(name, EXERCISES, n=1)
        hint = f"; did you mean '{found[0]}'?" if found else "."
        raise UserError(f"task is '{name}', which is no sort of exercise{hint} There are: {', '.join(EXERCISES)}")
    return EXERCISES[name]()
