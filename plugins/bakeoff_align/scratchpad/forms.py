"""How an exercise is answered: with a scratchpad, or at once; rightly, or with a slip."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod

from bakeoff.errors import UserError

from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.exercises import Exercises, written


class Form(ABC):
    """What is written as the answer to an exercise."""

    @abstractmethod
    def right(self, sort: Exercises, text: str) -> str:
        """What is right."""

    @abstractmethod
    def wrong(self, sort: Exercises, text: str, draws: Draws) -> str:
        """One digit is another somewhere, and what follows from it is worked out on; the answer is never right."""


class Scratchpad(Form):
    """All lines between tags, and the answer."""

    def right(self, sort: Exercises, text: str) -> str:
        return written(sort.worked_out(text), sort.answer(text))

    def wrong(self, sort: Exercises, text: str, draws: Draws) -> str:
        right = sort.worked_out(text)
        answer = sort.answer(text)
        while True:
            at = draws.below(len(right) + 1)
            line = sort.slipped([*right, answer][at], draws)
            if line is None:
                continue
            lines = right if at == len(right) else sort.worked_out(text, [*right[:at], line])
            concluded = line if at == len(right) else sort.concluded(text, lines)
            if concluded != answer:
                return written(lines, concluded)


class Direct(Form):
    """The answer alone."""

    def right(self, sort: Exercises, text: str) -> str:
        return sort.answer(text)

    def wrong(self, sort: Exercises, text: str, draws: Draws) -> str:
        slipped = sort.slipped(sort.answer(text), draws)
        assert slipped is not None, "answers have digits"
        return slipped


FORMS: dict[str, type[Form]] = {"scratchpad": Scratchpad, "direct": Direct}


def form(name: str) -> Form:
    """The one that is called so; `UserError` with the nearest name and all of them for another."""
    if name not in FORMS:
        found = difflib.get_close_matches(name, FORMS, n=1)
        hint = f"; did you mean '{found[0]}'?" if found else "."
        raise UserError(f"form is '{name}', which is none{hint} There are: {', '.join(FORMS)}")
    return FORMS[name]()
