"""Small dialogues, and batches of them as training makes them: what objectives that read dialogues are tried on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff.interfaces.dialogue import Dialogue, Row, Turn
from bakeoff.interfaces.policy import Collecting, PolicyObjective
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.model import LanguageModel
from bakeoff.parts.samplers import Sample
from bakeoff.parts.tokenizers.byte import ByteTokenizer

Batch = dict[str, Tensor | None]

TOKENIZER = ByteTokenizer()
_PADDING = {"tokens": TOKENIZER.padding, "labels": math.nan}


class Lines(Template):
    """The first letter of who speaks, what is said, and an end."""

    def opening(self, role: str, tokenizer: Tokenizer) -> list[int]:
        return tokenizer.encode(f"{role[0]}:")

    def spoken(self, turn: Turn, tokenizer: Tokenizer) -> list[int]:
        return [*tokenizer.encode(turn.text), tokenizer.end]


def _dialogue(question: str, steps: Items[str], labels: Items[float], rejected: str, right: float) -> Dialogue:
    return Dialogue(
        prompt=(Turn("user", question),),
        completion="".join(steps),
        rejected=rejected,
        margin=0.5,
        right=right,
        steps=tuple(steps),
        step_labels=tuple(labels),
        answer="4",
    )


#: Of unequal lengths, with all that one may know of them; nobody but the user has spoken before.
DIALOGUES = (
    _dialogue("2+2", ["4"], [1.0], "22, is it?", 1.0),
    _dialogue("name one", ["six.", " so"], [1.0, 0.0], "no", 0.0),
    _dialogue("?", ["a ", "b ", "c"], [1.0, 0.5, 0.25], "abc", 0.75),
)


class Rows(NamedTuple):
    """A batch, and how many rows of it stand for one thing that is learnt from.

    `prompts` : (B,) long, tokens at the beginning of each row that are only read; None: several dialogues share rows.
    """

    told: str
    batch: Batch
    each: int
    prompts: Tensor | None

    @property
    def things(self) -> int:
        """How many there are."""
        tokens = self.batch["tokens"]
        assert tokens is not None
        return len(tokens) // self.each

    def one(self, number: int) -> Batch:
        """The rows of one of them alone."""
        rows = slice(number * self.each, (number + 1) * self.each)
        found: Batch = {}
        for name, t in self.batch.items():
            of_rows = t is None or len(t) == self.things * self.each
            found[name] = t if t is None else t[rows] if of_rows else t[number : number + 1]
        return found

    def with_nothing(self) -> Batch:
        """The same, and rows of nothing but padding: what fills up the last batch of a validation."""
        found: Batch = {}
        for name, t in {**self.batch, "real": self._real()}.items():
            n = 0 if t is None else self.each if len(t) == self.things * self.each else 1
            found[name] = t if t is None else torch.cat([t, t.new_full((n, *t.shape[1:]), _PADDING.get(name, 0))])
        return found

    def padded(self, more: int) -> Batch:
        """The same rows with more padding on the right."""
        real = self._real()
        found: Batch = {}
        for name, t in {**self.batch, "real": real}.items():
            along = t is not None and t.shape[:2] == real.shape
            found[name] = F.pad(t, (0, more), value=_PADDING.get(name, 0)) if t is not None and along else t
        return found

    def _real(self) -> Tensor:
        tokens, real = self.batch["tokens"], self.batch.get("real")
        assert tokens is not None
        return torch.ones_like(tokens, dtype=torch.bool) if real is None else real


def rows_of(objective: Any, network: LanguageModel, seed: int) -> Iterator[Rows]:
    """What the objective is trained on: its own encoding of the dialogues, alone and packed; or what it collects."""
    if objective.collects:
        yield _collected(objective, network, seed)
        return
    encoded = [objective.encode(dialogue, Lines(), TOKENIZER) for dialogue in DIALOGUES]
    rows = [row for one in encoded for row in one.rows]
    prompts = [len(Lines().prompt(d.prompt, TOKENIZER)) for d in DIALOGUES for _ in range(objective.rows_each)]
    values = {name: torch.tensor([one.values[name] for one in encoded]) for name in encoded[0].values}
    batch = {**laid_out([[row] for row in rows], packed=False), **values}
    yield Rows("a dialogue a row", batch, objective.rows_each, torch.tensor(prompts))
    if objective.packs:
        yield Rows("packed dialogues", laid_out([rows[:2], rows[2:]], packed=True), 1, None)


def laid_out(rows: Items[Items[Row]], *, packed: bool) -> Batch:
    """Rows of one or several dialogues, padded to the longest."""
    L = max(sum(len(part.tokens) for part in row) for row in rows)
    tokens = torch.full((len(rows), L), TOKENIZER.padding)
    weights, labels = torch.zeros(len(rows), L), torch.full((len(rows), L), math.nan)
    documents, real = torch.zeros_like(tokens), torch.zeros(tokens.shape, dtype=torch.bool)
    for i, parts in enumerate(rows):
        start = 0
        for number, part in enumerate(parts):
            place = slice(start, start + len(part.tokens))
            tokens[i, place], weights[i, place] = torch.tensor(part.tokens), torch.tensor(part.weights)
            if part.labels is not None:
                labels[i, place] = torch.tensor(part.labels)
            real[i, place], documents[i, start:] = True, number
            start = place.stop
    batch: Batch = {"tokens": tokens, "weights": weights, "real": real, "documents": documents if packed else None}
    return batch if rows[0][0].labels is None else {**batch, "labels": labels}


def _collected(objective: PolicyObjective, network: LanguageModel, seed: int) -> Rows:
    collecting = Collecting(tokenizer=TOKENIZER, template=Lines(), sampler=Sample(), length=24, seed=seed)
    held = objective.collect(network, DIALOGUES, collecting)
    held |= objective.credit(held)
    prompts = [len(Lines().prompt(d.prompt, TOKENIZER)) for d in DIALOGUES for _ in range(objective.group)]
    return Rows("what was collected", {"documents": None, **held}, 1, torch.tensor(prompts))
