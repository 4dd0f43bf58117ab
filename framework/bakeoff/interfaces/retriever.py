"""Kind `retriever`: finds, among the chunks of a database, those that are like a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from bakeoff.interfaces.component import Component


class Texts(Protocol):
    """The chunks of a database as texts, by number; a slice reads those alone."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: slice) -> list[str]: ...


class Found(NamedTuple):
    """What is like each of n queries, the nearest first.

    `numbers` (n, k) int64, -1 where there are no more; `scores` (n, k) float32, more is nearer, -inf where none is.
    """

    numbers: np.ndarray
    scores: np.ndarray


class Index(ABC):
    """The chunks of a database, ready to be searched."""

    @abstractmethod
    def neighbours(self, queries: Items[str], k: int, exclude: np.ndarray | None = None) -> Found:
        """The `k` chunks that are most like each query.

        `exclude` (n, 2) int64: numbers from the first up to, not including, the second are not given to that query.
        """

    def exact(self, queries: Items[str], k: int, exclude: np.ndarray | None = None) -> Found:
        """The same by comparison with every chunk; where `neighbours` does that, it is the same call."""
        return self.neighbours(queries, k, exclude)


class Retriever(Component):
    """A way to search. It holds no database: `build` writes one's index, `load` opens it."""

    kind = "retriever"

    #: Whether it finds what is not like the query, so that what likeness is worth can be told: a control arm.
    control: ClassVar[bool] = False

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that decides what is found among given chunks, an embedder's own included."""

    def described(self) -> dict[str, str]:
        """What a database's manifest says of it, by name, such as the embedder's fingerprint: a mismatch names them."""
        return {"retriever": self.fingerprint()}

    @abstractmethod
    def build(self, texts: Texts, folder: Path, progress: Callable[[int], None]) -> None:
        """Write into an existing folder all that `load` needs.

        It goes on from what a call that was killed has left there. Its memory does not grow with the texts, but for
        the index itself. `progress` is told how many more texts are done.
        """

    @abstractmethod
    def load(self, folder: Path, texts: Texts) -> Index:
        """The index that `build` wrote there of the same texts; `UserError` naming a file that is cut short."""
