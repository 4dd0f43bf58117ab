"""What is to be measured, by name: measures, and tasks with or without arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from bakeoff.errors import UserError
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.measures import MEASURES
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.recipe.building import factory
from bakeoff.recipe.slips import near
from bakeoff.registry import names

#: A measure's or a task's name, or a task with arguments, `{use: NAME, …}`.
Entry = str | Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """Something that is measured.

    Attributes
    ----------
    label : what its figures begin with. task : its component, or None for a measure. figures : what a task says of
    each of its own.
    """

    label: str
    take: Callable[[Measured, Progress], Answer]
    task: str | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)

    def answer(self, measured: Measured, progress: Progress = lambda numbers: None) -> Answer:
        """Measure; figures are called `label.figure`. Random numbers are drawn aside, so that nothing else changes."""

        def tell(numbers: dict[str, Any]) -> None:
            progress({"phase": f"measuring {self.label}", **numbers})

        tell({})
        with _aside(measured):
            found = self.take(measured, tell)
        figures = {f"{self.label}.{name}": value for name, value in found.figures.items()}
        return found._replace(figures=figures)


def asked(entries: Iterable[Entry] | None = None) -> list[Asked]:
    """What the entries name (all measures, and no task, unless given), built.

    Raises `UserError` for a name that is unknown or stands twice, and for arguments that a task does not take.
    """
    found = [one(entry) for entry in (MEASURES if entries is None else entries)]
    labels = [each.label for each in found]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"'{label}' is to be measured twice")
    return found


def one(entry: Entry) -> Asked:
    """What one entry names."""
    node = dict(entry) if isinstance(entry, Mapping) else {"use": entry}
    name = node.get("use")
    if not isinstance(name, str):
        raise UserError(f"what is measured is a name, or a task with arguments, {{use: NAME, …}}, not {entry}")
    if name in MEASURES:
        if len(node) > 1:
            raise UserError(f"measure '{name}' takes no arguments")
        take = MEASURES[name]
        return Asked(name, lambda measured, progress: Answer(take(measured)))
    if "." not in name and name not in {task.name for task in names("task")}:
        raise UserError(unknown(name))
    try:
        task: Task = factory(node, "task")
    except ValueError as error:
        raise UserError(f"task {label_of(entry)}: {error}") from error
    return Asked(label_of(entry), task.measure, name, task.figures)


def label_of(entry: Any) -> str:
    """The entry in a word: a name, with its arguments by name where it has some, as in mqar(pairs=8)."""
    if not (isinstance(entry, Mapping) and "use" in entry):
        return str(entry)
    given = ", ".join(f"{key}={label_of(value)}" for key, value in sorted(entry.items()) if key != "use")
    return f"{entry['use']}({given})" if given else str(entry["use"])


def unknown(name: str) -> str:
    """What is said of a name that is neither a measure's nor a task's."""
    tasks = [task.name for task in names("task")]
    hint = near(name, [*MEASURES, *tasks]) or "."
    known = f"Measures: {', '.join(MEASURES)}; tasks: {', '.join(tasks) or 'none'}"
    return f"no measure or task is called '{name}'{hint} {known}"


def measure(measured: Measured, entries: Iterable[Entry] | None = None) -> dict[str, float]:
    """The figures of all that the entries name (of all measures unless given), as `name.figure`."""
    return {key: value for each in asked(entries) for key, value in each.answer(measured).figures.items()}


@contextmanager
def _aside(measured: Measured) -> Iterator[None]:
    """Random numbers that begin with the recipe's seed, and afterwards go on as if there had been none."""
    devices = [measured.device] if measured.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(measured.recipe.seed_of("sampling"))
        yield
