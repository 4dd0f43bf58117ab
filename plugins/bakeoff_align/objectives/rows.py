"""Rows that objectives make of dialogues."""

from __future__ import annotations

from bakeoff.errors import UserError
from bakeoff.interfaces import Dialogue, Row, Template, Tokenizer


def both_rows(dialogue: Dialogue, template: Template, tokenizer: Tokenizer, *, learner: str) -> tuple[Row, Row]:
    """The chosen completion after the prompt, and the rejected one after the same.

    `UserError`, which names the `learner`, where these are not two different texts.
    """
    texts = {"completion": dialogue.completion, "rejected": dialogue.rejected}
    for name, text in texts.items():
        if not text:
            fault = "missing" if text is None else "empty"
            raise UserError(
                f"its `{name}` is {fault}; {learner} learns from pairs of a `completion` that was chosen and another "
                "one that was `rejected`"
            )
    chosen, rejected = (template.row(dialogue.prompt, str(text), tokenizer) for text in texts.values())
    if chosen.tokens == rejected.tokens:
        raise UserError(
            f"its `completion` and its `rejected` are the same, {str(dialogue.completion)[:80]!r}: a pair of equal "
            "completions says nothing; leave it out"
        )
    return chosen, rejected
