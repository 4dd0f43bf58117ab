"""Progress on standard error for work that takes longer than a moment."""

from __future__ import annotations

import sys
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
#: Seconds between two lines where no terminal shows a bar.
EVERY = 30.0


def say(message: str) -> None:
    """One line on standard error."""
    Console(stderr=True).print(f"[dim]{message}[/dim]", highlight=False, soft_wrap=True)


class Bar:
    """A bar over bytes of text, or other units, shown only once the work has taken `PATIENCE` seconds.

    `total` is about how many of them there are, or None: then no time left is claimed. Where standard error is no
    terminal, a line every `EVERY` seconds stands for the bar.
    """

    def __init__(self, what: str, total: int | None, *, show: bool, unit: str = "bytes"):
        self._what, self._total, self._show, self._unit = what, total, show, unit
        self._started, self._done = time.monotonic(), 0
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._said: float | None = None  # when the last line was written

    def __enter__(self) -> Bar:
        return self

    def advance(self, done: int) -> None:
        """So many more are finished."""
        self._done += done
        now = time.monotonic()
        if not self._show or now - self._started <= PATIENCE:
            return
        if not self._console.is_terminal:
            self._say(now)
            return
        if self._progress is None:
            self._open()
        assert self._progress is not None
        self._progress.update(self._progress.task_ids[0], completed=self._done)

    def _say(self, now: float) -> None:
        if self._said is not None and now - self._said < EVERY:
            return
        self._said = now
        told = f"{self._what}: {self._done:,}"
        if self._total is not None and self._done:
            left = max(0, self._total - self._done) / self._done * (now - self._started)
            told += f" of {self._total:,} {self._unit}, {int(left // 60)}:{int(left % 60):02} left"
        else:
            told += f" {self._unit}"
        print(told, file=sys.stderr, flush=True)

    def _open(self) -> None:
        counted: tuple[ProgressColumn, ...] = DownloadColumn(), TransferSpeedColumn()
        if self._unit != "bytes":
            counted = MofNCompleteColumn(), TextColumn(self._unit)
        columns = TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn()
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._progress.add_task(self._what, total=self._total)
        self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
