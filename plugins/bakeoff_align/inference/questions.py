"""Dialogues that a model is asked, and what it says to them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from collections.abc import Sequence as Items
from itertools import groupby, islice
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from bakeoff import complete
from bakeoff.errors import CapabilityError
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.sampler import Sampler

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured
    from bakeoff.model.generate import Completion


@runtime_checkable
class FindsAnswers(Protocol):
    """A reward that can tell an answer from the words around it, so that answers can be counted."""

    def answer_of(self, text: str) -> str:
        """The final answer in a text, written in one way however it stands there; "" where there is none."""


class Questions:
    """The first dialogues of a validation split, as prompts for the model that is measured.

    `corpus` : whose; None: the one that the recipe trains on.

    Raises `CapabilityError`, beginning with `task`, where there are none, no template, or no room for an answer.
    """

    def __init__(self, measured: Measured, count: int, task: str, corpus: Corpus | None = None):
        data, limit = measured.data, measured.model.context.max_length
        if data.template is None:
            raise CapabilityError(
                f"{task}: the recipe has no data.template, which makes prompts of dialogues; such as "
                "data.template: {use: chat}"
            )
        self.measured, self.task = measured, task
        asked = data.corpus if corpus is None else corpus
        self.dialogues = list(islice(asked.dialogues("validation"), count))
        if not self.dialogues:
            raise CapabilityError(f"{task}: the validation split of {type(asked).__name__} has no dialogue")
        written = [data.template.prompt(each.prompt, data.tokenizer) for each in self.dialogues]
        self.prompts = [prompt or [data.tokenizer.end] for prompt in written]
        longest = max(map(len, self.prompts))
        if longest >= limit:
            number = [len(prompt) for prompt in self.prompts].index(longest)
            raise CapabilityError(
                f"{task}: the prompt of dialogue {number} has {longest} tokens, but the model's max_length is {limit}, "
                f"so that a prompt has at most {limit - 1}"
            )

    def continued(
        self, rows: Items[list[int]], *, copies: int, sampler: Sampler, most: int, purpose: str, stop: Items[str] = ()
    ) -> Iterator[tuple[int, list[Completion]]]:
        """The number of each row and `copies` ways in which the model goes on after it, in at most `most` tokens.

        Each row has room for a token at least. Rows of one length share a batch, which is read once for all copies, so
        that no part has to know padding; as many rows as a micro-batch of training has tokens for, but one at least.
        What is drawn depends on the recipe's seed of sampling, the `purpose` and the rows.
        """
        measured = self.measured
        seed, limit = measured.recipe.seed_of("sampling"), measured.model.context.max_length
        for length, group in groupby(sorted(range(len(rows)), key=lambda i: len(rows[i])), lambda i: len(rows[i])):
            numbers, new = list(group), min(most, limit - length)
            at_once = max(1, measured.batch * measured.length // (copies * (length + new)))
            for part in (numbers[i : i + at_once] for i in range(0, len(numbers), at_once)):
                with measured.autocast():
                    found = complete(
                        measured.model,
                        measured.data.tokenizer,
                        [rows[i] for i in part],
                        copies=copies,
                        sampler=sampler,
                        max_new_tokens=new,
                        stop=stop,
                        seed=random.Random(f"{self.task} {seed} {purpose} {part[0]}").getrandbits(48),
                    )
                for place, number in enumerate(part):
                    yield number, found[place * copies : (place + 1) * copies]
