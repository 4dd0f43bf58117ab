"""Kind `strategy`: how a run is laid out over several devices."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bakeoff.interfaces.component import Component


class Strategy(Component):
    """What stands at `trainer.strategy`, where it is none of Lightning's own."""

    kind = "strategy"
    carries_state: bool = True
    """Whether states go on from step to step under it (`trainer.stateful`)."""

    def check(self, model: Any, *, devices: int, nodes: int, length: int) -> list[str]:
        """Names of the parameters of a language model, on any device, of which ranks would hold parts only.

        `length` : tokens of a row, targets aside.

        Raises `UserError` naming what of the model cannot be laid out so. It is called before a run starts.
        """
        return []

    @abstractmethod
    def lightning(self, *, devices: int, nodes: int) -> Any:
        """Lightning's strategy for `nodes` machines of `devices` processes each.

        Raises `UserError` with both numbers where it does not fit so many.
        """

    @abstractmethod
    def batch_ranks(self, *, devices: int, nodes: int) -> int:
        """How many of the processes read rows of their own; the others read the same as one of these."""
