"""Kind `template`: how the turns of a conversation become ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Items

from bakeoff.interfaces.component import Component
from bakeoff.interfaces.dialogue import ASSISTANT, Row, Turn
from bakeoff.interfaces.tokenizer import Tokenizer


class Template(Component):
    """Each turn is an opening, which says whose it is, and what is spoken, its end included.

    A conversation is the ids of its turns one after another; so the ids that a model is prompted with are those that it
    was trained on, token by token. Only ids that no text can hold (the tokenizer's `end`) may mark where a turn ends:
    what somebody writes in a turn never opens another.
    """

    kind = "template"

    @abstractmethod
    def opening(self, role: str, tokenizer: Tokenizer) -> list[int]:
        """Ids after which `role` speaks; `UserError` naming the role if the template has none for it."""

    @abstractmethod
    def spoken(self, turn: Turn, tokenizer: Tokenizer) -> list[int]:
        """Ids of what a turn says; the last of the assistant's is `tokenizer.end`."""

    def prompt(self, turns: Items[Turn], tokenizer: Tokenizer) -> list[int]:
        """Ids of the turns so far, and the opening after which the assistant speaks."""
        told = [token for turn in turns for token in self.turn(turn, tokenizer)]
        return told + self.opening(ASSISTANT, tokenizer)

    def turn(self, turn: Turn, tokenizer: Tokenizer) -> list[int]:
        """Opening and what is spoken."""
        return self.opening(turn.role, tokenizer) + self.spoken(turn, tokenizer)

    def row(self, prompt: Items[Turn], completion: str, tokenizer: Tokenizer) -> Row:
        """Prompt and completion, whose tokens are the targets; its end is one of them."""
        read = self.prompt(prompt, tokenizer)
        said = self.spoken(Turn(ASSISTANT, completion), tokenizer)
        return Row(read + said, [0.0] * len(read) + [1.0] * len(said))
