"""What `bakeoff.compare` returns."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from bakeoff.compare.results import Results
from bakeoff.errors import MissingExtra


class Compared:
    """A comparison's results.

    Attributes
    ----------
    folder : where it stands. results : everything that was computed from its trials.
    """

    def __init__(self, folder: Path, results: Results):
        self.folder, self.results = folder, results

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row an arm: quality with half its interval, paired difference, speed, memory, size, verdict."""
        return self.results.table

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """One sentence an arm."""
        return {name: verdict.text for name, verdict in self.results.verdicts.items()}

    @property
    def report(self) -> Path:
        """The page."""
        return self.folder / "report.html"

    @property
    def complete(self) -> bool:
        """Whether every trial of every arm has a result."""
        refused = any(arm.facts["refused"] for arm in self.results.arms)
        return not (refused or self.results.failures or self.results.waiting)

    def to_frame(self) -> Any:
        """A pandas data frame, one row a trial. Raises `MissingExtra` without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_frame()", "notebook") from error
        return pandas.DataFrame(self.results.rows())

    def figures(self) -> dict[str, Any]:
        """The report's charts as Plotly figures by name: `validation`, `loss`, `speed`, `memory`, `task NAME`."""
        from bakeoff.compare.figures import figures

        return figures(self.results)

    def __repr__(self) -> str:
        return f"Compared({str(self.folder)!r})"
