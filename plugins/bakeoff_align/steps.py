"""Steps of an answer: where they are cut, and at which token each of them ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Items
from itertools import accumulate

from bakeoff.errors import UserError
from bakeoff.interfaces import Template, Tokenizer, Turn
from bakeoff.interfaces.dialogue import ASSISTANT
from bakeoff.parts.tokenizers.text import utf8


def cut(text: str, separator: str) -> list[str]:
    """The steps of a text, which joined give it: each ends with the separator, but for the last. None of no text."""
    pieces = text.split(separator)
    steps = [piece + separator for piece in pieces[:-1]]
    return [*steps, pieces[-1]] if pieces[-1] else steps


def ends_of(text: str, steps: Items[str], template: Template, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """`(ids, ends)`: what the assistant's turn `text` is spoken as, and at which of these ids each step ends.

    That is the id that holds the step's last byte. `UserError` where the ids do not spell the text.
    """
    spoken = template.spoken(Turn(ASSISTANT, text), tokenizer)
    pieces = [tokenizer.token_bytes(token) for token in spoken]
    start = b"".join(pieces).find(utf8(text))
    if start < 0:
        raise UserError(
            f"the ids of the answer {text[:60]!r} do not spell it, so that nobody knows where its steps end: use a "
            "tokenizer that is lossless, and a template that leaves the text as it is"
        )
    held = list(accumulate(len(piece) for piece in pieces))
    reached = accumulate(len(utf8(step)) for step in steps)
    return spoken, [bisect_left(held, start + end) for end in reached]
