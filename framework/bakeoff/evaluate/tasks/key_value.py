"""Task `key_value`: pairs of keys and values anywhere in a haystack of other tokens, found again by key."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Items
from typing import Any, ClassVar

import torch

from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.tasks.cells import Cells, Spacing, cells_html, cells_style, check_grid, depths_of, spaced
from bakeoff.evaluate.tasks.mqar import MQAR, accuracy
from bakeoff.evaluate.tasks.recall import Recall, check_sizes, hidden
from bakeoff.interfaces.task import Answer, Figure, Progress
from bakeoff.model import LanguageModel
from bakeoff.parts.counts import check_counts
from bakeoff.recipe import Recipe


class KeyValue(MQAR):
    """Needles for models that know no language: the value that followed a key, by length of the context and by depth.

    `pairs` keys with their values stand anywhere among filler, and behind it the keys once more, each to be answered
    with its value. As in `mqar` a small model of the recipe's own mixers is trained from nothing on such examples, here
    of all the grid's lengths in turn. Then, for each length and depth, it is asked for a pair that stands there. Shown
    is the grid of the shares of right answers; figures are their mean, `accuracy`, that of the `worst` cell, and the
    bytes of state that the longest example takes, `state_bytes`. By chance, 2 / `vocabulary` are right.

    The defaults take half a minute on one core of a CPU. Longer contexts and more pairs are learnt later, if at all.

    Parameters
    ----------
    lengths, depths : of the grid, how many. spacing : of depths, "linear" or "sigmoid".
    shortest, longest : lengths in tokens between which the grid lies, made even.
    pairs, vocabulary : of each example, the vocabulary halved between keys and values.
    filler : how many other ids the haystack is made of.
    d_model, layers : width, and layers at least, of the model.
    steps, batch, learning_rates, goal : of training, as in `mqar`.
    held_out : examples for each cell.
    """

    name: ClassVar = "key_value"
    figures: ClassVar = {
        "accuracy": Figure("more", "share", against="state_bytes"),
        "worst": Figure("more", "share"),
        "state_bytes": Figure(None, "bytes"),
    }

    def __init__(
        self,
        *,
        lengths: int = 3,
        depths: int = 5,
        spacing: Spacing = "linear",
        shortest: int = 24,
        longest: int = 40,
        pairs: int = 4,
        vocabulary: int = 32,
        filler: int = 8,
        d_model: int = 32,
        layers: int = 2,
        steps: int = 2000,
        batch: int = 64,
        learning_rates: Items[float] = (5e-3,),
        goal: float = 0.99,
        held_out: int = 256,
    ):
        check_grid(lengths=lengths, depths=depths, spacing=spacing, shortest=shortest, longest=longest)
        check_counts(filler=filler, layers=layers)
        self.lengths = [n + n % 2 for n in spaced(shortest, longest, lengths)]
        check_sizes(pairs=pairs, length=self.lengths[0], vocabulary=vocabulary)
        super().__init__(
            pairs=pairs,
            length=self.lengths[-1],
            vocabulary=vocabulary,
            d_model=d_model,
            depth=layers,
            steps=steps,
            batch=batch,
            learning_rates=learning_rates,
            goal=goal,
            held_out=held_out,
        )
        self.sizes = {"pairs": pairs, "vocabulary": vocabulary, "filler": filler}
        self.vocabulary = vocabulary + filler
        self.depths = depths_of(depths, spacing)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A few steps."""
        tiny = {"pairs": 2, "shortest": 8, "longest": 12, "lengths": 2, "depths": 2, "vocabulary": 16, "d_model": 16}
        return [{**tiny, "filler": 4, "batch": 4, "held_out": 16, "steps": 3}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Train, and ask in every cell."""
        cells = self.cells(self.trained(measured, progress), measured.recipe)
        figures = {"accuracy": cells.mean, "worst": cells.worst, **self.state_bytes(measured.recipe)}
        html = f"{cells_style()}{cells_html(cells, 'Percentage of values found')}"
        return Answer(figures, html, {"cells": cells._asdict()})

    def cells(self, model: LanguageModel, recipe: Recipe) -> Cells:
        """The share of right answers in each."""
        values = [
            [
                accuracy(model, self.asked_at(length, depth, self.generator(recipe, f"{length} {depth}")), self.batch)
                for length in self.lengths
            ]
            for depth in self.depths
        ]
        return Cells(self.lengths, self.depths, values)

    def asked_at(self, length: int, depth: float, generator: torch.Generator) -> Recall:
        """Examples of a cell; only the pair that stands at `depth` is asked for."""
        found = hidden(self.held_out, length=length, depth=depth, generator=generator, **self.sizes)
        return Recall(found.tokens, found.queries[:, :1], found.answers[:, :1])

    def _drawn(self, recipe: Recipe, purpose: str, n: int) -> Any:
        """Examples of all lengths in turn, the longest first."""
        generator = self.generator(recipe, purpose)
        for length in itertools.cycle(self.lengths[::-1]):
            yield hidden(n, length=length, generator=generator, **self.sizes)
