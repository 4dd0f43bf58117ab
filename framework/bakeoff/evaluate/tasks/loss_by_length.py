"""Task `loss_by_length`: what the same tokens cost when the model reads them in shorter and in longer rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bakeoff.data import Data
from bakeoff.data.loading import spread
from bakeoff.data.packing import Batch, Windows
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate.lengthening import lengthened
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.precision import autocast
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.model.bits import evaluate_bits

#: What is said of each length, `NAME_LENGTH`.
BITS, NATS = "bits_per_byte", "nats_per_token"


class LossByLength(Task):
    """Loss of the validation split read in rows of several lengths, each over the same tokens.

    The split is cut into spans of the longest length, of which as many are taken, evenly spread, as the recipe's
    `validation.tokens` asks for; each span is then read as one row, as two of half the length, and so on. So every
    length has the same targets, and only what stands before them in their row differs: at n tokens a row, n / 2 on
    average. Rows begin with an empty state. Figures are `bits_per_byte_N` (where the tokenizer is lossless) and
    `nats_per_token_N` for each length N as it was given, and `tokens`, the targets of each.

    Where a length is beyond the model's `max_length`, a model of that `max_length` is built with the same weights: what
    hangs on it, as the base of `dynamic_ntk_rope`, is that of the longer model. Raises `CapabilityError` where a part
    has weights for each place and so ends with its length, `UserError` where the split is too short.

    Parameters
    ----------
    lengths : tokens of a row, such as 512, or multiples of the recipe's `data.length`, such as "4x"; each must divide
        the longest.
    """

    reference = Reference(
        "Press, Smith and Lewis",
        2021,
        "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
        "https://arxiv.org/abs/2108.12409",
    )
    figures: ClassVar = {
        **{f"{name}_{n}x": Figure("less" if name == BITS else None) for n in (1, 2, 4, 8) for name in (BITS, NATS)},
        "tokens": Figure(),
    }

    def __init__(self, *, lengths: Items[int | str] = ("1x", "2x", "4x", "8x")):
        if not lengths:
            raise ValueError("lengths is empty; it takes at least one, such as 512 or 4x")
        self.lengths = {str(length): _length(length) for length in lengths}
        bits = {f"{BITS}_{length}": Figure("less") for length in self.lengths}
        nats = {f"{NATS}_{length}": Figure() for length in self.lengths}
        self.figures = {**bits, **nats, "tokens": Figure()}  # type: ignore[misc]  # those of the lengths asked for

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Multiples of the training length, and a shorter row beside them."""
        return [{}, {"lengths": [32, "1x", "2x"]}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Read the spans at each length."""
        lengths = {name: at.of(measured.length) for name, at in self.lengths.items()}
        spans = spans_of(measured, lengths)
        figures: dict[str, float] = {}
        for number, name in enumerate(sorted(lengths, key=lengths.__getitem__, reverse=True), 1):
            length = lengths[name]
            found = _loss(measured, spans, length)
            if figures.setdefault("tokens", found["tokens"]) != found["tokens"]:
                raise CapabilityError(
                    f"loss_by_length counts the same targets at every length, but {type(measured.objective).__name__} "
                    f"has {figures['tokens']:.0f} at one and {found['tokens']:.0f} at {length}"
                )
            figures |= {f"{kind}_{name}": found[kind] for kind in (BITS, NATS) if kind in found}
            progress({"step": number, "total": len(lengths)})
        return Answer({name: figures[name] for name in self.figures if name in figures})


class _Length(NamedTuple):
    """So many tokens, or so many times the training length."""

    number: int
    times: bool

    def of(self, trained: int) -> int:
        return self.number * trained if self.times else self.number


def _length(given: int | str) -> _Length:
    found = re.fullmatch(r"([1-9][0-9]*)(x?)", str(given))
    if not found:
        raise ValueError(f"lengths has '{given}'; a length is a number of tokens such as 512, or 4x of data.length")
    return _Length(int(found[1]), times=bool(found[2]))


class Spans:
    """Stretches of the validation split, each of `longest` targets.

    Parameters
    ----------
    starts : (n,) their first tokens. ahead : tokens that a row holds beyond its length.
    """

    def __init__(self, data: Data, starts: np.ndarray, longest: int, ahead: int):
        self.data, self.starts, self.longest, self.ahead = data, starts, longest, ahead

    def batches(self, length: int, at_once: int) -> Iterator[Batch]:
        """All spans in rows of `length` tokens, `at_once` of them in a batch."""
        inner = np.arange(0, self.longest, length)
        starts = (self.starts[:, None] + inner).flatten()
        for first in range(0, len(starts), at_once):
            chosen = starts[first : first + at_once]
            yield self.data.rows("validation", chosen, length=length, wanted=length + self.ahead)


def spans_of(measured: Measured, lengths: dict[str, int]) -> Spans:
    """The spans that rows of all `lengths` fill; `UserError` where the split has none, or a length does not divide."""
    data, longest = measured.data, max(lengths.values())
    for name, length in lengths.items():
        if longest % length:
            below = max(n for n in range(1, length) if longest % n == 0)
            raise UserError(
                f"lengths: {name} is {length} tokens, which does not divide the longest, {longest}, so that rows of "
                f"both would not hold the same tokens; nearest: {below}"
            )
    ahead = measured.objective.tokens_wanted(longest) - longest
    held = len(data.store("validation").tokens)
    windows = Windows(held, longest, longest + ahead)
    if not windows.whole:
        raise UserError(
            f"lengths: a row of {longest} tokens does not fit the validation split, which holds {held}; "
            f"the longest that does: {held - ahead}"
        )
    asked = measured.recipe.tree["validation"]["tokens"]
    wanted = windows.whole if asked is None else max(1, asked // longest)
    return Spans(data, spread(windows.whole, wanted) * longest, longest, ahead)


def _loss(measured: Measured, spans: Spans, length: int) -> dict[str, float]:
    data = measured.data
    at_once = max(1, measured.batch * measured.length // length)
    table = data.bytes_per_token if data.tokenizer.lossless else None
    model = lengthened(measured, length)
    with autocast(measured.recipe, measured.device):
        return evaluate_bits(model, measured.objective, spans.batches(length, at_once), table, measured.device)
