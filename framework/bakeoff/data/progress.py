"""Progress on standard error for work that takes longer than a moment."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

PATIENCE = 2.0


def say(message: str) -> None:
    """One line on standard error."""
    Console(stderr=True).print(f"[dim]{message}[/dim]", highlight=False, soft_wrap=True)


class Bar:
    """A bar over bytes of text, or other units, shown only once the work has taken `PATIENCE` seconds.

    `total` is about how many of them there are, or None: then no time left is claimed.
    """

    def __init__(self, what: str, total: int | None, *, show: bool, unit: str = "bytes"):
        self._what, self._total, self._show, self._unit = what, total, show, unit
        self._started, self._done = time.monotonic(), 0
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        return self

    def advance(self, done: int) -> None:
        """So many more are finished."""
        self._done += done
        if self._progress is None and self._show and time.monotonic() - self._started > PATIENCE:
            self._open()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done)

    def _open(self) -> None:
        counted: tuple[ProgressColumn, ...] = DownloadColumn(), TransferSpeedColumn()
        if self._unit != "bytes":
            counted = MofNCompleteColumn(), TextColumn(self._unit)
        columns = TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn()
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.add_task(self._what, total=self._total)
        self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
