"""What is shown while trials run: a live line each on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from bakeoff.compare.plan import Trial
from bakeoff.compare.tuning import label
from bakeoff.compare.words import count, duration, plural
from bakeoff.interfaces.executor import Outcome

#: Seconds between two plain lines about one running trial.
PATIENCE = 20.0


class TimeLeft:
    """Estimates what remains from the trials that are done, by their operations; nothing before the first.

    A trial that runs is not ended before it says so itself.
    """

    def __init__(self, trials: Iterable[Trial], slots: int):
        listed = list(trials)
        known = all(trial.arm.flops for trial in listed)
        self.work = {trial.name: (trial.arm.flops if known else 1.0) or 1.0 for trial in listed}
        self.slots = min(slots, max(1, len(listed)))
        self.begun: dict[str, float] = {}
        self.told: dict[str, float] = {}  # when a running trial thinks that its training ends
        self.left = sum(self.work.values())
        self.done = self.spent = 0.0

    def started(self, name: str) -> None:
        """A trial begins."""
        self.begun[name] = time.monotonic()

    def tells(self, name: str, seconds: float) -> None:
        """A trial says how long it will yet train."""
        self.told[name] = time.monotonic() + seconds

    def ended(self, name: str, seconds: float | None) -> None:
        """A trial has ended after so many seconds; one that failed (None) says nothing about time."""
        self.begun.pop(name)
        self.told.pop(name, None)
        self.left -= self.work[name]
        if seconds is not None:
            self.done += self.work[name]
            self.spent += seconds

    def seconds(self) -> float | None:
        """Until the last trial ends."""
        if not self.done:
            return None
        now, each = time.monotonic(), self.spent / self.done
        waiting = self.left - sum(self.work[name] for name in self.begun)
        running = [
            max(each * self.work[name] - (now - begun), self.told.get(name, now) - now, 0.0)
            for name, begun in self.begun.items()
        ]
        return max((waiting * each + sum(running)) / self.slots, *running, 0.0)


class Watch:
    """Shows nothing; the base of what does."""

    def __init__(self, trials: list[Trial], slots: int, unit: str):
        self.trials = {trial.name: trial for trial in trials}
        self.time_left = TimeLeft(trials, slots)
        self.unit = unit
        self.ended = 0

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def progress(self, name: str, numbers: Mapping[str, Any]) -> None:
        """A trial has begun (no numbers) or tells where it stands."""
        if not numbers:
            self.time_left.started(name)
        elif numbers.get("seconds_left"):
            self.time_left.tells(name, numbers["seconds_left"])

    def outcome(self, outcome: Outcome, quality: float | None) -> None:
        """A trial has ended."""
        self.ended += 1
        self.time_left.ended(outcome.trial, outcome.result["seconds"] if outcome.result else None)

    def title(self, name: str) -> str:
        """The trial in words."""
        trial = self.trials[name]
        return f"{trial.arm.name}, " + (f"seed {trial.seed}" if trial.stage == "run" else f"search {_point(trial)}")

    def line(self, outcome: Outcome, quality: float | None) -> str:
        """How a trial ended, in one line."""
        title = self.title(outcome.trial)
        if outcome.result is None:
            return f"✗ {title}: {outcome.reason}"
        measures, words = outcome.result["measures"], []
        words += [f"{quality:.4f} {self.unit}"] if quality is not None else []
        speed = measures.get("throughput.tokens_per_second")
        words += [f"{count(speed)} tokens/s"] if speed else []
        return f"✓ {title}: {', '.join([*words, duration(outcome.result['seconds'])])}"

    def overall(self) -> str:
        """How far the whole is."""
        seconds = self.time_left.seconds()
        left = f", about {duration(seconds)} left" if seconds is not None and self.ended < len(self.trials) else ""
        return f"{self.ended} of {plural(len(self.trials), 'trial')}{left}"


class Lines(Watch):
    """Plain lines: one a trial that ended, and now and then one about a trial that runs."""

    def __init__(self, trials: list[Trial], slots: int, unit: str, console: Console):
        super().__init__(trials, slots, unit)
        self.console = console
        self.said: dict[str, float] = {}

    def progress(self, name: str, numbers: Mapping[str, Any]) -> None:
        """Say where it stands, unless that was said a moment ago."""
        super().progress(name, numbers)
        now = time.monotonic()
        if numbers and now - self.said.setdefault(name, now) >= PATIENCE:
            self.said[name] = now
            self._say(f"  {self.title(name)}: {describe(numbers)}")

    def outcome(self, outcome: Outcome, quality: float | None) -> None:
        """Say how it ended, and how far the whole is."""
        super().outcome(outcome, quality)
        self._say(f"{self.line(outcome, quality)}  [{self.overall()}]")

    def _say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)


class Live(Watch):
    """A bar for each running trial and one for the whole."""

    def __init__(self, trials: list[Trial], slots: int, unit: str, console: Console):
        super().__init__(trials, slots, unit)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=18))
        details = TextColumn("{task.fields[details]}", markup=False)
        self.bars = Progress(*columns, details, console=console, refresh_per_second=4)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Watch:
        self.whole = self.bars.add_task("all", total=len(self.trials), details=self.overall())
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def progress(self, name: str, numbers: Mapping[str, Any]) -> None:
        """Move its bar."""
        super().progress(name, numbers)
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(self.title(name), total=None, details="starting")
        if numbers:
            total, step = numbers.get("total"), numbers.get("step")
            self.bars.update(self.tasks[name], total=total, completed=step, details=describe(numbers))
        self.bars.update(self.whole, details=self.overall())

    def outcome(self, outcome: Outcome, quality: float | None) -> None:
        """Replace its bar by a line that stays."""
        super().outcome(outcome, quality)
        if outcome.trial in self.tasks:
            self.bars.remove_task(self.tasks.pop(outcome.trial))
        style = "" if outcome.result else "red"
        self.bars.console.print(Text(self.line(outcome, quality), style=style))
        self.bars.update(self.whole, completed=self.ended, details=self.overall())


def watch(trials: list[Trial], slots: int, unit: str, console: Console | None) -> Watch:
    """What suits the console; None shows nothing."""
    if console is None:
        return Watch(trials, slots, unit)
    kind = Live if console.is_terminal or console.is_jupyter else Lines
    return kind(trials, slots, unit, console)


def describe(numbers: Mapping[str, Any]) -> str:
    """Where a trial stands, in a few words."""
    phase = numbers.get("phase", "")
    words = [] if phase == "training" else [phase]
    words += [f"step {numbers['step']}/{numbers['total']}"] if "total" in numbers else []
    words += [f"loss {numbers['loss']:.3f}"] if numbers.get("loss") else []
    words += [f"{count(numbers['tokens_per_second'])} tokens/s"] if numbers.get("tokens_per_second") else []
    words += [f"{duration(numbers['seconds_left'])} left"] if numbers.get("seconds_left") else []
    return ", ".join(words)


def _point(trial: Trial) -> str:
    return label(trial.point)
