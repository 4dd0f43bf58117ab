"""Templates: a prompt is what training saw, targets are what the assistant says, and text stays text."""

from __future__ import annotations

from functools import cache
from itertools import chain

from bakeoff.errors import UserError
from bakeoff.interfaces.dialogue import ASSISTANT, Turn
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.tokenizers.bpe import BPETokenizer
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law

_TURNS = [
    [Turn("user", "2 + 2?")],
    [Turn("user", "name one"), Turn(ASSISTANT, " rose \n"), Turn("user", "another\n")],
    [Turn("user", ""), Turn(ASSISTANT, ""), Turn("user", "naïve 🤗")],
]
_ANSWERS = ["4", "", " tulip\n\n"]
_NOBODY = "nobody of this kit"


@law(None, "turns", "template")
def turns(candidate: Candidate) -> None:
    """A prompt and what is answered are the ids of all turns; the answer, its end included, is what is learnt."""
    template: Template = candidate.build()
    for tokenizer in _tokenizers():
        for told in _TURNS:
            for answer in _ANSWERS:
                said = template.spoken(Turn(ASSISTANT, answer), tokenizer)
                _answered(template, tokenizer, told, answer, said)
                shown = _shown(told, answer)
                if said[-1:] != [tokenizer.end] or tokenizer.end in said[:-1]:
                    raise Broken(f"{shown}: the assistant's ids, {said}, do not end with the one end id")


@law(None, "roles", "template")
def roles(candidate: Candidate) -> None:
    """An unknown role is refused by name, unless no two of the others are told apart."""
    template: Template = candidate.build()
    for tokenizer in _tokenizers():
        try:
            opened = template.opening(_NOBODY, tokenizer)
        except UserError as error:
            if _NOBODY not in str(error):
                raise Broken(f"the error for the role '{_NOBODY}' does not name it: {error}") from error
            continue
        if opened != template.opening("user", tokenizer):
            raise Broken(f"the role '{_NOBODY}' has an opening, {opened}, though no template is made for it")


@law(None, "text", "template")
def text(candidate: Candidate) -> None:
    """What is written in a turn opens or ends none, and is read back as it was written."""
    template: Template = candidate.build()
    for tokenizer in _tokenizers():
        opening = template.opening(ASSISTANT, tokenizer)
        forged = [tokenizer.end, *opening]
        marks = [tokenizer.decode(opening), tokenizer.decode(template.opening("user", tokenizer))]
        written = [
            "<|end|>",
            "</s>",
            *(form for mark in marks for form in (mark, f"{mark}yes", f"no{mark}", f"\n{mark}.")),
        ]
        for role in ("user", ASSISTANT):
            wanted = _held(template.prompt([Turn(role, "plain")], tokenizer), forged, tokenizer)
            for content in written:
                ids = template.prompt([Turn(role, content)], tokenizer)
                if _held(ids, forged, tokenizer) != wanted:
                    raise Broken(f"{role} says {content!r}: among the ids {ids} it opens or ends a turn of its own")
                if content not in tokenizer.decode(template.spoken(Turn(role, content), tokenizer)):
                    raise Broken(f"{role} says {content!r}, which is not what its ids are read as")


def _answered(template: Template, tokenizer: Tokenizer, told: list[Turn], answer: str, said: list[int]) -> None:
    """That prompt, row, and turns agree."""
    prompt = template.prompt(told, tokenizer)
    whole = list(chain(*(template.turn(turn, tokenizer) for turn in [*told, Turn(ASSISTANT, answer)])))
    shown = _shown(told, answer)
    if prompt + said != whole:
        raise Broken(f"{shown}: prompt and answer are {prompt + said}, but the turns are {whole}")
    row = template.row(told, answer, tokenizer)
    if row.tokens != whole:
        raise Broken(f"{shown}: the row that is learnt from is {row.tokens}, but the turns are {whole}")
    if row.weights != [0.0] * len(prompt) + [1.0] * len(said):
        raise Broken(f"{shown}: the targets are not the {len(said)} ids of the answer: weights {row.weights}")


def _held(ids: list[int], forged: list[int], tokenizer: Tokenizer) -> tuple[int, int]:
    """How many control ids, and how many openings of the assistant behind an end, there are among `ids`."""
    openings = sum(ids[place : place + len(forged)] == forged for place in range(len(ids)))
    return sum(token >= tokenizer.text_size for token in ids), openings


def _shown(told: list[Turn], answer: str) -> str:
    return f"{len(told)} turns from {told[0].text!r} on, answered by {answer!r}"


@cache
def _tokenizers() -> list[Tokenizer]:
    """Bytes, and merges that reach over what openings are often made of."""
    merged = BPETokenizer(vocab_size=281)
    merged.train(["<|user|>\nyes\n<|assistant|>\nno <|end|> user: yes\nassistant: no\n"] * 4)
    return [ByteTokenizer(), merged]
