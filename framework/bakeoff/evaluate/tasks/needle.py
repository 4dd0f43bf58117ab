"""Task `needle`: whether a model finds a number that stands somewhere in a long text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from html import escape
from typing import Any, ClassVar

import torch

from bakeoff.errors import CapabilityError
from bakeoff.evaluate.lengthening import lengthened
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.precision import autocast
from bakeoff.evaluate.tasks.cells import Cells, Spacing, cells_html, cells_style, check_grid, depths_of, spaced
from bakeoff.evaluate.tasks.haystack import CITIES, CONTEXT, DIGITS, Haystack, Prompt, right
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.model import LanguageModel
from bakeoff.model.generate import complete
from bakeoff.parts.counts import check_counts
from bakeoff.parts.modes import evaluating

TEMPLATE = "{context}\n{question}\nThe special magic {city} number is:"


class Needle(Task):
    """Needle in a haystack: text with a sentence "The special magic CITY number is: 1234567" somewhere in it, and then
    the question for that number.

    A grid of context lengths and of depths at which the needle stands. Lengths are evenly spaced whole numbers of
    tokens, of the whole prompt and the room for its answer; depths are percents of the text. The model writes the
    answer greedily through its state. Figures: the share of numbers that it `found` digit by digit, over all cells, and
    in the `worst` of them; and `nats`, what the right answer costs it per digit, which tells small models apart that
    find nothing: who has no idea pays 2.30 (the logarithm of ten). Each question is asked in a prompt of its own.

    Where a length is beyond the model's `max_length`, a model of that length is built on the same weights; where a part
    has weights for each place, that is a `CapabilityError`.

    Parameters
    ----------
    lengths, depths : how many. spacing : of depths, "linear" or "sigmoid", closer together towards both ends.
    shortest, longest : lengths between which the grid lies; null: the model's `max_length`.
    rounds : contexts for each cell.
    needles, asked : numbers hidden in each context, and of how many it is asked; the others stand anywhere.
    buffer : tokens of each length that are left for the answer.
    corpus : whose validation text is the haystack; null: that of the recipe.
    template : of the prompt, with {context}, {question} and {city}; a model that follows instructions wants its own.
    """

    reference = Reference(
        "Kamradt", 2023, "Needle In A Haystack", "https://github.com/gkamradt/LLMTest_NeedleInAHaystack"
    )
    figures: ClassVar = {
        "found": Figure("more", "share"),
        "worst": Figure("more", "share"),
        "nats": Figure("less"),
    }
    example_model: ClassVar = {"data.length": 256}

    def __init__(
        self,
        *,
        lengths: int = 4,
        depths: int = 5,
        spacing: Spacing = "linear",
        shortest: int = 256,
        longest: int | None = None,
        rounds: int = 2,
        needles: int = 1,
        asked: int = 1,
        buffer: int = 16,
        corpus: Corpus | None = None,
        template: str = TEMPLATE,
    ):
        check_grid(lengths=lengths, depths=depths, spacing=spacing, shortest=shortest, longest=longest)
        check_counts(rounds=rounds, buffer=buffer)
        if not 1 <= asked <= needles <= len(CITIES):
            raise ValueError(f"asked is {asked}, needles {needles}; it takes 1 <= asked <= needles <= {len(CITIES)}")
        if template.count(CONTEXT) != 1:
            raise ValueError(f"template holds {CONTEXT} {template.count(CONTEXT)} times; it takes it once")
        self.lengths, self.shortest, self.longest = lengths, shortest, longest
        self.depths = depths_of(depths, spacing)
        self.rounds, self.needles, self.asked, self.buffer = rounds, needles, asked, buffer
        self.corpus, self.template = corpus, template

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A small grid, and one with several needles."""
        tiny = {"lengths": 2, "depths": 2, "shortest": 200, "rounds": 1}
        return [tiny, {**tiny, "shortest": 240, "needles": 2, "asked": 2, "spacing": "sigmoid"}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Every cell of the grid."""
        lengths = self.lengths_for(measured.model.context.max_length)
        models = {length: lengthened(measured, length) for length in lengths}
        haystack = Haystack(self.corpus or measured.data.corpus, measured.data.tokenizer, lengths[-1])
        columns, nats, done = [], [], 0
        with autocast(measured.recipe, measured.device):
            for length in lengths:
                shares = []
                for depth in self.depths:
                    prompts = list(self.prompts(haystack, length, depth, measured.recipe.seed_of("data")))
                    batch = max(1, measured.batch * measured.length // length)
                    written = _written(models[length], measured.data.tokenizer, prompts, self.buffer, batch)
                    hits = [right(text, each.digits) for text, each in zip(written, prompts, strict=True)]
                    shares.append(sum(hits) / len(hits))
                    nats += [answer_nats(models[length], each) / DIGITS for each in prompts]
                    done += 1
                    progress({"step": done, "total": len(lengths) * len(self.depths)})
                columns.append(shares)
        cells = Cells(lengths, self.depths, [list(row) for row in zip(*columns, strict=True)])
        figures = {"found": cells.mean, "worst": cells.worst, "nats": sum(nats) / len(nats)}
        return Answer(figures, self._shown(cells, figures), {"cells": cells._asdict()})

    def lengths_for(self, limit: int) -> list[int]:
        """Those of the grid, for a model whose `max_length` is `limit`."""
        if self.longest is None and self.shortest > limit:
            raise CapabilityError(
                f"needle: shortest is {self.shortest}, more than the model's max_length of {limit}, up to which the "
                f"grid goes where longest is not given: let shortest be at most {limit}, or give longest"
            )
        return spaced(self.shortest, self.longest or limit, self.lengths)

    def prompts(self, haystack: Haystack, length: int, depth: float, seed: int) -> Iterator[Prompt]:
        """Of one cell; a round hides the same in the same piece of text at every depth."""
        for number in range(self.rounds):
            draws = random.Random(f"needle {seed} {number} {length}")
            needles = haystack.draw(self.needles, draws)
            yield from haystack.prompts(
                needles,
                asked=self.asked,
                depth=depth,
                size=length - self.buffer,
                template=self.template,
                numbers=draws,
            )

    def _shown(self, cells: Cells, figures: dict[str, float]) -> str:
        many = f" {self.needles} needles stand in each, {self.asked} are asked for." if self.needles > 1 else ""
        told = (
            f"Of the numbers asked for, {100 * figures['found']:.1f} % are written digit by digit; the right answer "
            f"costs {figures['nats']:.2f} nats a digit, 2.30 without any idea.{many}"
        )
        return f"{cells_style()}<p>{escape(told)}</p>{cells_html(cells, 'Percentage of numbers found')}"


def _written(model: LanguageModel, tokenizer: Tokenizer, prompts: list[Prompt], buffer: int, batch: int) -> list[str]:
    """What the model writes behind each prompt."""
    longest = max(len(each.answer) for each in prompts)
    if longest > buffer:
        raise CapabilityError(f"needle: an answer takes {longest} tokens, but buffer is {buffer}: let it be larger")
    written: list[str] = []
    for start in range(0, len(prompts), batch):
        ids = [each.ids for each in prompts[start : start + batch]]
        found = complete(model, tokenizer, ids, max_new_tokens=buffer)
        written += [completion.text for completion in found]
    return written


def answer_nats(model: LanguageModel, prompt: Prompt) -> float:
    """What the right answer costs behind its prompt, in nats."""
    tokens = torch.tensor([[*prompt.ids, *prompt.answer]], device=model.backbone.embedding.device)
    with evaluating(model), torch.no_grad():
        hidden = model.backbone(Sequence(tokens[:, :-1])).y[:, len(prompt.ids) - 1 :]
        return float(model.head(hidden, tokens[:, len(prompt.ids) :])[0])
