"""How a run tells where it stands: a bar on a terminal, plain lines elsewhere, numbers for a program."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

#: Seconds between two refreshes of a display, at least; and the share of a processor that they may take.
REFRESH, SHARE = 0.25, 1 / 200
#: Seconds between two plain lines.
PATIENCE = 5.0

Numbers = dict[str, Any]
#: What `fit(progress=…)` takes: whether to show, or whom to tell.
Progress = bool | Callable[[Numbers], None]


class Display:
    """Shows nothing but messages; the base of what shows more."""

    def start(self, total: int, step: int) -> None:
        """The run begins, or continues, at `step` of `total`."""

    def update(self, numbers: Numbers) -> None:
        """Where the run stands: step, total, loss, tokens_per_second, mfu, seconds_left, bits_per_byte, phase."""

    def say(self, message: str) -> None:
        """One line that stays."""
        print(message, file=sys.stderr, flush=True)

    def close(self) -> None:
        """The run has ended."""


class Mute(Display):
    """Shows nothing at all: for ranks other than the first."""

    def say(self, message: str) -> None:
        """Nothing."""


class Program(Display):
    """Hands the numbers to a callable, for processes that are watched by another."""

    def __init__(self, tell: Callable[[Numbers], None]):
        self.tell = tell

    def update(self, numbers: Numbers) -> None:
        """Pass them on."""
        self.tell(numbers)


class Lines(Display):
    """A line every few seconds."""

    def __init__(self) -> None:
        self.shown = float("-inf")

    def update(self, numbers: Numbers) -> None:
        """Print, unless a line was printed a moment ago; the last step is always printed."""
        now = time.monotonic()
        ended = numbers["step"] == numbers["total"] and numbers["phase"] == "training"
        if now - self.shown >= PATIENCE or ended:
            self.shown = now
            self.say(f"step {numbers['step']}/{numbers['total']}  {describe(numbers)}")


class Bar(Display):
    """A bar on the terminal."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn())
        details = (TimeElapsedColumn(), TextColumn("{task.fields[details]}"))
        self.console = Console(stderr=True)
        self.progress = RichProgress(*columns, *details, console=self.console, auto_refresh=False)

    def start(self, total: int, step: int) -> None:
        """Draw it."""
        self.task = self.progress.add_task("training", total=total, completed=step, details="")
        self.progress.start()

    def update(self, numbers: Numbers) -> None:
        """Move it."""
        self.progress.update(
            self.task, completed=numbers["step"], description=numbers["phase"], details=describe(numbers), refresh=True
        )

    def say(self, message: str) -> None:
        """A line above the bar."""
        self.console.print(message, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.progress.stop()


def display_for(progress: Progress, *, main: bool = True) -> Display:
    """The display that `fit(progress=…)` asks for; ranks other than the first show nothing."""
    if not main:
        return Mute()
    if progress is False:
        return Display()
    if callable(progress):
        return Program(progress)
    return Bar() if sys.stderr.isatty() else Lines()


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much one optimizer step is.

    Attributes
    ----------
    total : optimizer steps of the run.
    tokens : tokens read in a step, over all ranks.
    flops : operations of a step's forward and backward, over all ranks; None where a part declares no cost.
    peak : operations a second that the devices reach together in matrix products; None where nobody looks.
    """

    total: int
    tokens: int
    flops: int | None
    peak: float | None


class Speedometer:
    """Works out speed and time left from the steps of this process, and refreshes a display a few times a second."""

    def __init__(self, scale: Scale, display: Display):
        self.scale, self.display = scale, display
        self.shown = self.speed = self.loss = 0.0
        self.bits_per_byte: float | None = None
        self.last = (0, 0.0)
        self.pause = REFRESH

    def start(self, step: int, seconds: float) -> None:
        """Begin at `step`, after `seconds` of training."""
        self.last = (step, seconds)

    def show(self, step: int, seconds: float, *, loss: float | None = None, phase: str = "training") -> None:
        """Refresh the display, unless that was done a moment ago and there is more to come."""
        now = time.monotonic()
        if now - self.shown < self.pause and step < self.scale.total and phase == "training":
            return
        self.shown = now
        self.loss = self.loss if loss is None else loss
        steps, spent = step - self.last[0], seconds - self.last[1]
        if steps and spent > 0:
            latest = steps * self.scale.tokens / spent
            self.speed = latest if not self.speed else 0.7 * self.speed + 0.3 * latest
            self.last = (step, seconds)
        before = time.thread_time()
        self.display.update(self._numbers(step, phase))
        self.pause = max(REFRESH, (time.thread_time() - before) / SHARE)

    def _numbers(self, step: int, phase: str) -> Numbers:
        scale, speed = self.scale, self.speed
        known = bool(speed and scale.flops and scale.peak)
        return {
            "phase": phase,
            "step": step,
            "total": scale.total,
            "tokens": step * scale.tokens,
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "tokens_per_second": speed or None,
            "mfu": speed / scale.tokens * scale.flops / scale.peak if known else None,  # type: ignore[operator]
            "seconds_left": (scale.total - step) * scale.tokens / speed if speed else None,
        }


def describe(numbers: Numbers) -> str:
    """Loss, speed and time left in a few words."""
    parts = [f"loss {numbers['loss']:.3f}"] if numbers.get("loss") is not None else []
    if numbers.get("bits_per_byte") is not None:
        parts.append(f"bits/byte {numbers['bits_per_byte']:.3f}")
    if numbers.get("tokens_per_second"):
        parts.append(f"{count(numbers['tokens_per_second'])} tokens/s")
    if numbers.get("mfu") is not None:
        parts.append(f"MFU {100 * numbers['mfu']:.0f} %")
    if numbers.get("seconds_left") is not None:
        parts.append(f"{duration(numbers['seconds_left'])} left")
    return "  ".join(parts)


def count(number: float) -> str:
    """A large number in three digits: 12.3k, 4.56M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """Seconds as 0:42, 5:03 or 1:05:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
