"""Exercises drawn for the splits of a corpus: none of the validation split is in the train split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from bakeoff.errors import UserError

from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.exercises import Exercises

#: So many draws in a row that give nothing new mean that there is nothing new.
PATIENCE = 100


class Exercise(NamedTuple):
    """One that was drawn."""

    text: str
    length: int


@dataclass(frozen=True)
class Drawing:
    """What is drawn.

    Attributes
    ----------
    task : the name of the sort. lengths, held_lengths : shortest and longest of train and of validation.
    count, held : how many of each.
    """

    task: str
    sort: Exercises
    lengths: tuple[int, int]
    held_lengths: tuple[int, int]
    count: int
    held: int
    seed: int

    def exercises(self, split: str) -> Iterator[Exercise]:
        """Those of a split. Of train, lengths are drawn too, and exercises may come again; of validation, lengths take
        turns, and all exercises differ."""
        return self._train() if split == "train" else self._validation()

    def _train(self) -> Iterator[Exercise]:
        draws = Draws(self.seed, "train")
        held = {text for texts in self._held.values() for text in texts}
        for _ in range(self.count):
            length = draws.between(*self.lengths)
            text = self.sort.drawn(length, draws)
            while text in held:
                text = self.sort.drawn(length, draws)
            yield Exercise(text, length)

    def _validation(self) -> Iterator[Exercise]:
        low, high = self.held_lengths
        for number in range(self.held):
            place, turn = number % (high - low + 1), number // (high - low + 1)
            yield Exercise(self._held[low + place][turn], low + place)

    @cached_property
    def _held(self) -> dict[int, list[str]]:
        """Of each length, the exercises of the validation split."""
        low, high = self.held_lengths
        wanted = -(-self.held // (high - low + 1))
        return {length: self._different(length, wanted) for length in range(low, high + 1)}

    def _different(self, length: int, wanted: int) -> list[str]:
        """So many different ones; `UserError` where there are not, or none would be left for as many of train."""
        draws = Draws(self.seed, f"validation {length}")
        trained = self.lengths[0] <= length <= self.lengths[1]
        needed = 2 * wanted if trained else wanted
        found: dict[str, None] = {}
        idle = 0
        while len(found) < needed and idle < PATIENCE * needed:
            before = len(found)
            found[self.sort.drawn(length, draws)] = None
            idle = 0 if len(found) > before else idle + 1
        if len(found) < needed:
            rest = ", and the train split, which has that length too, needs as many others" if trained else ""
            raise UserError(
                f"corpus: task '{self.task}' has {len(found)} different exercises of length {length}; validation_count "
                f"{self.held} over lengths {self.held_lengths[0]} to {self.held_lengths[1]} takes {wanted}{rest}: ask "
                "for fewer, or for longer ones"
            )
        return list(found)[:wanted]
