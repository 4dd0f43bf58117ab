"""Kind `schedule`: the learning rate over a run."""

from __future__ import annotations

from abc import abstractmethod

from bakeoff.interfaces.component import Component


class Schedule(Component):
    """A factor on each group's learning rate, as a function of the optimizer step."""

    kind = "schedule"

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """Factor for optimizer step `step` (from 0) of `total`, the length of the run's budget."""
