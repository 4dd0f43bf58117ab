"""Task `probe`: what the hidden states of a trained model tell of the texts that it has read."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.tasks import logistic
from bakeoff.evaluate.tasks.coloured import NEGATIVE, POSITIVE, characters, coloured, style
from bakeoff.evaluate.tasks.hidden import reading
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.interfaces.tokenizer import Tokenizer

#: Rows that are read at once.
BATCH = 32
#: Penalties tried, as shares of the one that keeps no unit; the share of the fitting texts that choose among them.
PENALTIES, CHOOSING = tuple(10 ** (-k / 3) for k in range(1, 10)), 0.25


class Probe(Task):
    """Reads the class of held-out texts off the hidden state after their last token.

    The hidden state is the cell of an LSTM (as in the paper, there behind a tanh), or what the layer's mixer puts out.
    A corpus with labels gives the texts, of its validation split: with the first half of them a logistic regression
    under an L1 penalty is fitted on all units, standardised, the penalty chosen on a quarter of that half, and the best
    single unit is found with its threshold; the other half decides on what is reported: `accuracy` of all units
    together, `unit_accuracy` of the one, `chance` (the share of the commoner class), how many units the penalty `kept`,
    and which one is the best, `unit`. The report shows texts coloured by it. Texts longer than the model's `max_length`
    are read from their end back.

    Parameters
    ----------
    layer : whose mixer; negative ones count from the last.
    of : "output", or the name of a field of the mixer's state; null: `c` where the state has it, else the output.
    corpus : has labels, 0 and 1; null: that of the recipe.
    texts : how many of the validation split are used at most.
    shown : how many of each class the report shows.
    """

    reference = Reference(
        "Radford, Jozefowicz and Sutskever",
        2017,
        "Learning to Generate Reviews and Discovering Sentiment",
        "https://arxiv.org/abs/1704.01444",
    )
    figures: ClassVar = {
        "accuracy": Figure("more", "share"),
        "unit_accuracy": Figure("more", "share"),
        "chance": Figure(None, "share"),
        "kept": Figure(),
        "unit": Figure(None, "index"),
    }

    def __init__(
        self,
        *,
        layer: int = -1,
        of: str | None = None,
        corpus: Corpus | None = None,
        texts: int = 2000,
        shown: int = 2,
    ):
        if texts < 8:
            raise ValueError(f"texts is {texts}; it must be at least 8")
        if shown < 0:
            raise ValueError(f"shown is {shown}; it must be 0 or more")
        self.layer, self.of, self.corpus, self.texts, self.shown = layer, of, corpus, texts, shown

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """The recipe's corpus, and one of its own."""
        return [{}, {"corpus": {"use": "reviews", "texts": 160, "validation": 0.3}, "layer": 0, "shown": 1}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Read the texts, fit, and colour."""
        texts, labels = self._texts(self.corpus or measured.data.corpus)
        tokenizer, longest = measured.data.tokenizer, measured.model.context.max_length
        ids = [tokenizer.encode(text)[-longest:] for text in texts]
        half, y = len(ids) // 2, torch.tensor(labels, dtype=torch.double)
        with reading(measured.model, self.layer, self.of) as hidden:
            last: list[Tensor] = []
            for start in range(0, len(ids), BATCH):
                last.append(hidden.last(ids[start : start + BATCH]))
                progress({"step": min(start + BATCH, len(ids)), "total": len(ids)})
            states = torch.cat(last)
            figures, unit = judged(states[:half], y[:half], states[half:], y[half:])
            chosen = [i for label in (1, 0) for i in self._first(label, labels, half)]
            values = [hidden.trace(ids[i])[:, unit.number] for i in chosen]
        signed = [(unit.sign * (each - unit.threshold)).tolist() for each in values]
        texts_shown = [(ids[i], labels[i], each) for i, each in zip(chosen, signed, strict=True)]
        layer = self.layer % len(measured.model.backbone.layers)
        what = f"{states.shape[1]} ({hidden.of} of the mixer of layer {layer})"
        told = _told(figures, what, len(ids) - half)
        return Answer(figures, page(told, texts_shown, tokenizer))

    def _first(self, label: int, labels: list[int], begin: int) -> Iterator[int]:
        """The first few texts of a class from `begin` on."""
        return islice((i for i in range(begin, len(labels)) if labels[i] == label), self.shown)

    def _texts(self, corpus: Corpus) -> tuple[list[str], list[int]]:
        pairs = list(islice(corpus.labelled("validation"), self.texts))
        held = {label for _, label in pairs}
        if held != {0, 1}:
            raise UserError(f"probe tells class 1 from class 0, but the validation split has classes {sorted(held)}")
        return [text for text, _ in pairs], [label for _, label in pairs]


def judged(x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor) -> tuple[dict[str, float], logistic.Unit]:
    """Fitted on `x` (n, F) and `y` (n,), the figures on held-out rows, and the best unit."""
    mean, deviation = x.mean(0), x.std(0)
    scaled, held = ((part - mean) / deviation.where(deviation > 0, 1.0) for part in (x, held_x))
    fitting = len(y) - max(1, round(CHOOSING * len(y)))
    fits = path(scaled[:fitting], y[:fitting])
    scores = [one.accuracy(scaled[fitting:], y[fitting:]) for one in fits]
    share = PENALTIES[scores.index(max(scores))]  # of equals, the one that keeps the fewest
    whole = logistic.fit(scaled, y, share * logistic.strongest(scaled, y))
    unit = logistic.best_unit(x, y)
    positive = float(held_y.mean())
    figures = {
        "accuracy": whole.accuracy(held, held_y),
        "unit_accuracy": unit.accuracy(held_x, held_y),
        "chance": max(positive, 1 - positive),
        "kept": float((whole.weights != 0).sum()),
        "unit": float(unit.number),
    }
    return figures, unit


def path(x: Tensor, y: Tensor) -> list[logistic.Fit]:
    """A fit for each of `PENALTIES`, each begun at the one before."""
    fits: list[logistic.Fit] = []
    for share in PENALTIES:
        fits.append(logistic.fit(x, y, share * logistic.strongest(x, y), fits[-1] if fits else None))
    return fits


def _told(figures: dict[str, float], units: str, texts: int) -> str:
    return (
        f"Unit {figures['unit']:.0f} of {units} alone tells the class of {100 * figures['unit_accuracy']:.1f} % of "
        f"{texts:,} held-out texts, all units together {100 * figures['accuracy']:.1f} %; the commoner class has "
        f"{100 * figures['chance']:.1f} %."
    )


def page(told: str, texts: list[tuple[list[int], int, list[float]]], tokenizer: Tokenizer) -> str:
    """What was found in words, and each text (ids, class, values) coloured."""
    largest = max((abs(value) for _, _, values in texts for value in values), default=0.0)
    sides = "".join(
        f'<span style="background: rgb({colour} / 0.5); padding: 0 0.4em">towards class {label}</span> '
        for label, colour in ((1, POSITIVE), (0, NEGATIVE))
    )
    shown = "".join(
        f"<p><b>Class {label}</b></p>{coloured(characters(tokenizer, ids, values), largest)}"
        for ids, label, values in texts
    )
    return (
        f"{style()}<p>{escape(told)}</p><p>Each character is coloured by the unit's value after it: {sides}</p>{shown}"
    )
