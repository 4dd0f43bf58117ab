"""How the turns of conversations become ids: `chat`, with openings that say who speaks, and `plain`, without."""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import permutations

from bakeoff.errors import UserError
from bakeoff.interfaces.dialogue import ASSISTANT, Turn
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer

PLACE = "{role}"


class Chat(Template):
    """A turn is the opening of its role, what is said, and the tokenizer's end, each encoded by itself.

    No token lies across a boundary, so that a prompt's ids do not depend on the answer. No text holds the end, and no
    opening begins with another one: so the ids of an opening behind an end, or at the very beginning, are always those
    of a turn, whatever is written in turns. What looks like an opening inside a turn stays its text; that a model
    takes it for text is not a matter of ids, and is for training to teach.

    Parameters
    ----------
    pattern : the opening of each of `roles`; holds {role}, which becomes the role's name.
    roles : who may speak.
    openings : of roles that have one of their own, in place of the pattern's or besides `roles`.
    """

    def __init__(
        self,
        *,
        pattern: str = "<|{role}|>\n",
        roles: Items[str] = ("system", "user", "assistant"),
        openings: dict[str, str] | None = None,
    ):
        if PLACE not in pattern:
            raise UserError(
                f"template 'chat': pattern is {pattern!r}; it must hold {PLACE}, the place of a role's name"
            )
        self.openings = {role: pattern.replace(PLACE, role) for role in roles} | (openings or {})
        if ASSISTANT not in self.openings:
            known = ", ".join(self.openings) or "none"
            raise UserError(
                f"template 'chat': the model speaks as '{ASSISTANT}', which is not among the roles: {known}"
            )
        for (one, text), (other, longer) in permutations(self.openings.items(), 2):
            if longer.startswith(text):
                raise UserError(
                    f"template 'chat': the opening of '{other}', {longer!r}, begins with that of '{one}', {text!r}; "
                    f"what '{one}' writes could make a turn of '{other}': no opening may begin with another one"
                )

    @classmethod
    def examples(cls) -> list[dict[str, object]]:
        """As it is, and with other roles and openings."""
        own = {"assistant": ">> ", "tool": "= "}
        return [{}, {"pattern": "[{role}] ", "roles": ["system", "user"], "openings": own}]

    def opening(self, role: str, tokenizer: Tokenizer) -> list[int]:
        if role not in self.openings:
            raise UserError(
                f"template 'chat' has no opening for the role '{role}'; its roles: {', '.join(self.openings)}; name "
                "the role in data.template.roles, or give it one in data.template.openings"
            )
        return tokenizer.encode(self.openings[role])

    def spoken(self, turn: Turn, tokenizer: Tokenizer) -> list[int]:
        return [*tokenizer.encode(turn.text), tokenizer.end]


class Plain(Template):
    """What others say, a separator, what the model says, and the tokenizer's end, each encoded by itself.

    For scratchpads, for models that have read texts and no conversations, and for examples before a question: several
    turns stand one after another. Any role may speak, and only the model's turns have an end. So what others write may
    look like anything but an end: for text that its user trusts.

    Parameters
    ----------
    separator : behind each turn of the others.
    """

    def __init__(self, *, separator: str = "\n"):
        self.separator = separator

    @classmethod
    def examples(cls) -> list[dict[str, object]]:
        """With a separator and without."""
        return [{}, {"separator": ""}]

    def opening(self, role: str, tokenizer: Tokenizer) -> list[int]:
        return []

    def spoken(self, turn: Turn, tokenizer: Tokenizer) -> list[int]:
        behind = [tokenizer.end] if turn.role == ASSISTANT else tokenizer.encode(self.separator)
        return tokenizer.encode(turn.text) + behind
