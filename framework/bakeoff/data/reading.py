"""What an objective reads of the data: windows of text, or dialogues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch.utils.data import DataLoader

from bakeoff.data.packing import Batch
from bakeoff.interfaces.objective import Objective

if TYPE_CHECKING:
    from bakeoff.data.data import Data


class Reading(Protocol):
    """Batches for one objective. A batch is what the objective says of it."""

    def training(
        self, *, seed: int, first_step: int = 0, ranks: int = 1, rank: int = 0, stateful: bool = False
    ) -> DataLoader[Batch]:
        """Micro-batches of one rank from optimizer step `first_step` on, without end."""

    def validation(
        self, *, tokens: int | None = None, ranks: int = 1, rank: int = 0, stateful: bool = False
    ) -> DataLoader[Batch]:
        """The validation split in order, or about so many `tokens` of it, evenly spread."""


class WindowReading:
    """Windows of the text, as `Data.training` and `Data.validation` cut them."""

    def __init__(self, data: Data, objective: Objective):
        self.data, self.wanted = data, objective.tokens_wanted(data.length)

    def training(
        self, *, seed: int, first_step: int = 0, ranks: int = 1, rank: int = 0, stateful: bool = False
    ) -> DataLoader[Batch]:
        """`Data.training`."""
        told = {"first_step": first_step, "ranks": ranks, "rank": rank, "stateful": stateful}
        return self.data.training(tokens_wanted=self.wanted, seed=seed, **told)  # type: ignore[arg-type]

    def validation(
        self, *, tokens: int | None = None, ranks: int = 1, rank: int = 0, stateful: bool = False
    ) -> DataLoader[Batch]:
        """`Data.validation`."""
        told = {"tokens": tokens, "ranks": ranks, "rank": rank, "stateful": stateful}
        return self.data.validation(tokens_wanted=self.wanted, **told)  # type: ignore[arg-type]
