"""Kind `corpus`: where text comes from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.component import Component
from bakeoff.interfaces.dialogue import Dialogue

SPLITS = ("train", "validation")


class Corpus(Component):
    """Documents of two disjoint splits, in a fixed order."""

    kind = "corpus"

    @abstractmethod
    def documents(self, split: str) -> Iterator[str]:
        """Texts of a split ("train" or "validation"), always in the same order; an unknown split is an error."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that decides what `documents` yields: equal fingerprints, equal texts."""

    @property
    @abstractmethod
    def licence(self) -> str:
        """Under what terms the text may be used."""

    def labelled(self, split: str) -> Iterator[tuple[str, int]]:
        """Texts of a split with a class each, from 0 on, in a fixed order. Refused unless the corpus knows classes."""
        raise CapabilityError(f"{type(self).__name__} has no labels: use a corpus that has, such as {{use: reviews}}")

    def dialogues(self, split: str) -> Iterator[Dialogue]:
        """What there is to be answered in a split, in a fixed order. Refused unless the corpus has such."""
        raise CapabilityError(
            f"{type(self).__name__} has texts and no dialogues: use a corpus that has, such as "
            "{use: scratchpad, task: addition}, or train with the objective 'causal'"
        )

    def size(self) -> int | None:
        """About how many bytes of text both splits hold, where that is known at once; for estimates."""
        return None
