"""Kind `task`: what a model is tried at beyond its own data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from bakeoff.interfaces.component import Component

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured

#: Takes where the work stands: any of step, total, loss, seconds_left, phase.
Progress = Callable[[dict[str, Any]], None]


class Figure(NamedTuple):
    """What one figure of a task is.

    Attributes
    ----------
    better : whether more of it is better, or less; None: it describes, so that no verdict rests on it.
    unit : "share" of one; "bytes"; "index", which is listed and never averaged; "" for any other number.
    against : the figure of the same task that the report draws it against, such as the size of a state.
    """

    better: Literal["more", "less"] | None = None
    unit: Literal["share", "bytes", "index", ""] = ""
    against: str | None = None


class Answer(NamedTuple):
    """What came out.

    Attributes
    ----------
    figures : by name. html : what a report shows of it, that stands by itself, without scripts; "" for nothing.
    data : what a page of the report draws of several trials together, as JSON has it; None for nothing.
    """

    figures: dict[str, float]
    html: str = ""
    data: dict[str, Any] | None = None


class Task(Component):
    """One task. `measure: [NAME]` in a comparison, or `{use: NAME, …}` with arguments, tries every trial at it."""

    kind = "task"
    figures: ClassVar[Mapping[str, Figure]]
    """Every figure that `measure` may give, in the order in which they are shown."""
    example_model: ClassVar[Mapping[str, Any]] = {}
    """What the small model that the kit tries it with must be changed in, where not any model will do: overrides of a
    recipe, by path."""

    @abstractmethod
    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Try a trained model; equal seeds of the recipe give equal answers, and nothing that is given changes.

        Raises `CapabilityError` naming the part that cannot do what the task asks; the comparison then goes on.
        """
