"""Contexts with needles in them: text of a corpus, and sentences of its own at chosen depths."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.tokenizer import Tokenizer

#: Of a number that is to be found.
DIGITS = 7
CITIES = (
    "Accra", "Bergen", "Chicago", "Dakar", "Edinburgh", "Florence", "Geneva", "Havana", "Istanbul", "Jakarta", "Kyoto",
    "Lisbon", "Melbourne", "Nairobi", "Oslo", "Prague", "Quito", "Riga", "Santiago", "Toronto", "Utrecht", "Valencia",
    "Warsaw", "Zagreb",
)  # fmt: skip
CONTEXT, QUESTION = "{context}", "{question}"


class Prompt(NamedTuple):
    """Ids of a context with a question behind it, and what is to be written next.

    Attributes
    ----------
    ids : the whole. digits : the number asked for. answer : ids of it. places : where each needle begins in `ids`, the
    one that is asked for first. context : `ids` of the context, as a slice.
    """

    ids: list[int]
    digits: str
    answer: list[int]
    places: list[int]
    context: slice


class Needles(NamedTuple):
    """What is hidden in one context: a number for each city."""

    numbers: dict[str, str]

    def text(self, city: str) -> str:
        """What stands in the context."""
        return f"\nThe special magic {city} number is: {self.numbers[city]}\n"

    def answer(self, city: str) -> str:
        """What is to be written behind "… number is:"."""
        return f" {self.numbers[city]}"


def question(city: str) -> str:
    """What is asked."""
    return f"What is the special magic {city} number?"


class Haystack:
    """Text of a corpus as ids, as much as is asked for; it begins anew where the corpus ends.

    Parameters
    ----------
    most : ids that any context takes at most.
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, most: int):
        self.tokenizer, self.text, self.ids = tokenizer, "", list[int]()
        for text in _again(corpus):
            self.ids += tokenizer.encode(text)
            self.text += text
            if len(self.ids) >= 2 * most:
                break

    def draw(self, cities: int, numbers: random.Random) -> Needles:
        """Needles whose numbers stand nowhere in the text."""
        drawn: dict[str, str] = {}
        for city in numbers.sample(CITIES, cities):
            digits = str(numbers.randrange(10 ** (DIGITS - 1), 10**DIGITS))
            while digits in self.text or digits in drawn.values():
                digits = str(numbers.randrange(10 ** (DIGITS - 1), 10**DIGITS))
            drawn[city] = digits
        return Needles(drawn)

    def prompts(
        self, needles: Needles, *, asked: int, depth: float, size: int, template: str, numbers: random.Random
    ) -> list[Prompt]:
        """One for each of the first `asked` needles, `size` ids long each.

        The context is a piece of the text with the needles in it: the one that is asked for behind `depth` percent of
        the text's ids, to the nearest, the others anywhere. Raises `UserError` where it does not fit.
        """
        start = numbers.randrange(max(1, len(self.ids) - size))
        others = {city: numbers.random() for city in needles.numbers}
        return [
            self._prompt(needles, city, depth, {k: v for k, v in others.items() if k != city}, start, size, template)
            for city in list(needles.numbers)[:asked]
        ]

    def _prompt(
        self,
        needles: Needles,
        city: str,
        depth: float,
        others: Mapping[str, float],
        start: int,
        size: int,
        template: str,
    ) -> Prompt:
        encode = self.tokenizer.encode
        before, after = (
            encode(part.replace(QUESTION, question(city)).replace("{city}", city)) for part in template.split(CONTEXT)
        )
        hidden = {name: encode(needles.text(name)) for name in needles.numbers}
        room = size - len(before) - len(after) - sum(map(len, hidden.values()))
        if room < 0:
            raise UserError(
                f"needle: a prompt of {size} tokens has no room for {len(hidden)} needles and the question, which take "
                f"{size - room} tokens: let shortest be larger, or needles fewer"
            )
        text = self.ids[start : start + room]
        at = {city: round(depth / 100 * room)} | {name: round(share * room) for name, share in others.items()}
        context: list[int] = []
        places: dict[str, int] = {}
        done = 0
        for name in sorted(at, key=lambda each: (at[each], each != city)):
            context += text[done : at[name]]
            places[name], done = len(before) + len(context), at[name]
            context += hidden[name]
        context += text[done:]
        order = [places[city], *(places[name] for name in others)]
        return Prompt(
            ids=[*before, *context, *after],
            digits=needles.numbers[city],
            answer=encode(needles.answer(city)),
            places=order,
            context=slice(len(before), len(before) + len(context)),
        )


def right(written: str, digits: str) -> bool:
    """Whether the first thing written is the number, and no longer one."""
    return re.match(rf"\s*{digits}(?!\d)", written) is not None


def _again(corpus: Corpus) -> Iterator[str]:
    """The texts of the validation split, from the beginning again when they end."""
    while True:
        empty = True
        for text in corpus.documents("validation"):
            empty = empty and not text
            yield text
        if empty:
            raise UserError(f"needle: the validation split of {type(corpus).__name__} holds no text to hide needles in")
