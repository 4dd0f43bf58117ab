"""Faults planted in templates."""

from __future__ import annotations

import pytest
from bakeoff.errors import UserError
from bakeoff.interfaces import Row, Template, Turn
from bakeoff.testing import check


class Sound(Template):
    def opening(self, role, tokenizer):
        if role not in ("user", "assistant"):
            raise UserError(f"no role '{role}'")
        return tokenizer.encode(f"{role}: ")

    def spoken(self, turn, tokenizer):
        return [*tokenizer.encode(turn.text), tokenizer.end]


class NoEnd(Sound):
    def spoken(self, turn, tokenizer):
        return tokenizer.encode(turn.text)


class EndsByText(Sound):
    """Takes "<|end|>" in a text for the end."""

    def spoken(self, turn, tokenizer):
        pieces = [tokenizer.encode(piece) for piece in turn.text.split("<|end|>")]
        return [token for piece in pieces for token in [*piece, tokenizer.end]]


class Strips(Sound):
    def spoken(self, turn, tokenizer):
        return super().spoken(Turn(turn.role, turn.text.strip()), tokenizer)


class PromptsOtherwise(Sound):
    def prompt(self, turns, tokenizer):
        return super().prompt(turns, tokenizer)[:-1]


class LearnsThePrompt(Sound):
    def row(self, prompt, completion, tokenizer):
        row = super().row(prompt, completion, tokenizer)
        return Row(row.tokens, [1.0] * len(row.tokens))


class EncodesAtOnce(Sound):
    def row(self, prompt, completion, tokenizer):
        row = super().row(prompt, completion, tokenizer)
        tokens = [*tokenizer.encode(tokenizer.decode(row.tokens)), tokenizer.end]
        return Row(tokens, row.weights[-len(tokens) :])


class Anybody(Sound):
    def opening(self, role, tokenizer):
        return tokenizer.encode(f"{role}: ")


class NamesNobody(Sound):
    def opening(self, role, tokenizer):
        try:
            return super().opening(role, tokenizer)
        except UserError:
            raise UserError("no such role") from None


def test_a_sound_one_keeps_the_laws() -> None:
    check(Sound).raise_for_failures()


@pytest.mark.parametrize(
    ("component", "law", "message"),
    [
        (NoEnd, "turns", "do not end with the one end id"),
        (EndsByText, "text", "user says '<|end|>': among the ids"),
        (Strips, "text", "which is not what its ids are read as"),
        (PromptsOtherwise, "turns", "1 turns from '2 + 2?' on, answered by '4': prompt and answer are"),
        (LearnsThePrompt, "turns", "the targets are not the 2 ids of the answer"),
        (EncodesAtOnce, "turns", "the row that is learnt from is"),
        (Anybody, "roles", "the role 'nobody of this kit' has an opening"),
        (NamesNobody, "roles", "does not name it: no such role"),
    ],
)
def test_planted_faults_are_caught(component: type[Template], law: str, message: str) -> None:
    report = check(component, laws=[law])
    assert any(message in finding.reason for finding in report.failures), str(report)
