"""Turns, answers and judgements in the rows of JSONL files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bakeoff.interfaces.dialogue import ASSISTANT, Turn
from bakeoff.parts.corpora.json_rows import BadRow, text_in

USER = "user"


@dataclass(frozen=True)
class Messages:
    """How a list of messages is written.

    Attributes
    ----------
    role, content : of each message, the fields with who speaks, and what.
    roles : what is written for a role -> the role, where these differ.
    """

    role: str = "role"
    content: str = "content"
    roles: Mapping[str, str] = field(default_factory=dict)

    def turns(self, row: dict[str, Any], name: str) -> tuple[Turn, ...]:
        """The messages in a field, one at least."""
        found = row[name]
        if not isinstance(found, list) or not found:
            what = "an empty list" if found == [] else f"a {type(found).__name__}, no list of messages"
            raise BadRow(f"field '{name}' is {what}")
        return tuple(self._turn(message, f"message {number} of '{name}'") for number, message in enumerate(found, 1))

    def asked(self, row: dict[str, Any], name: str) -> tuple[Turn, ...]:
        """A prompt: messages, or a text, which is a user's."""
        return self.turns(row, name) if isinstance(row.get(name), list) else (Turn(USER, text_in(row, name)),)

    def answer(self, row: dict[str, Any], name: str) -> tuple[tuple[Turn, ...], str]:
        """An answer, and the turns that stand before it: the last of some messages, or a text."""
        if not isinstance(row.get(name), list):
            return (), text_in(row, name)
        *before, last = self.turns(row, name)
        if last.role != ASSISTANT:
            raise BadRow(f"the last message of '{name}' is by '{last.role}', not by '{ASSISTANT}'")
        return tuple(before), last.text

    def _turn(self, message: Any, where: str) -> Turn:
        if not isinstance(message, dict):
            raise BadRow(f"{where} is a {type(message).__name__}, no object")
        try:
            role, said = text_in(message, self.role), text_in(message, self.content)
        except BadRow as fault:
            raise BadRow(f"{where}: {fault}") from None
        return Turn(self.roles.get(role, role), said)


def number_in(row: dict[str, Any], name: str) -> float:
    """The finite number in a field; true is 1, false 0."""
    found = row[name]
    if not isinstance(found, (int, float)) or not math.isfinite(found):
        raise BadRow(f"field '{name}' is {found!r}, no finite number")
    return float(found)
