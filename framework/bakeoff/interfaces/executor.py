"""Kind `executor`: where the trials of a comparison run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, NamedTuple

from bakeoff.interfaces.component import Component


class Outcome(NamedTuple):
    """How one trial ended: its result file's content, or the reason that it has none."""

    trial: str
    result: dict[str, Any] | None
    reason: str | None


class Executor(Component):
    """Runs trial folders (each holds the trial's whole recipe) and yields their outcomes as they come."""

    kind = "executor"

    @abstractmethod
    def run(self, trials: Items[Path], progress: Callable[[str, dict[str, Any]], None]) -> Iterator[Outcome]:
        """Run each folder once; `progress(trial name, numbers)` is called at most four times a second a trial."""
