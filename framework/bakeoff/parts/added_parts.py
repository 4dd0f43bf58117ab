"""Converter `added_parts`: a trained run in a model that has more parts than it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.converter import Converter
from bakeoff.parts.patterns import chosen
from bakeoff.parts.weights import disagreements


class AddedParts(Converter):
    """Each weight of the run under its own name, and beside them what the run has not, as the recipe draws it.

    With `trained: ${converter.drawn}` the recipe then trains the new parts alone. Where each of them ends in a
    product that begins at zero (`zero`), and is added to what was there, the model begins as the run's, exactly.

    Parameters
    ----------
    drawn : patterns of the names of weights that may be new, as in `trained`. All others the run must have.
    zero : patterns of those among them that begin at zero.
    moved : modules of the run that stand elsewhere in the model, by their paths, such as {head: head.inner} where a
        head was put around the run's.

    Raises `UserError` for a weight that only one side has, or has in another shape, and a pattern that matches none.
    """

    reference = Reference(
        "Borgeaud et al.",
        2022,
        "Improving Language Models by Retrieving from Trillions of Tokens",
        "https://arxiv.org/abs/2112.04426",
    )
    of_runs = True

    def __init__(self, *, drawn: list[str], zero: list[str] | None = None, moved: dict[str, str] | None = None):
        self.drawn, self.zero, self.moved = drawn, zero or [], moved or {}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """What may be new is there already, once with a part that would begin at zero."""
        return [{"drawn": ["backbone.norm.*"]}, {"drawn": ["*.feed_forward.*"], "zero": ["*.feed_forward.down.*"]}]

    def from_run(self, source: nn.Module, model: nn.Module, seed: int) -> dict[str, Tensor]:
        """See `Converter`."""
        given, wanted = _moved(source.state_dict(), self.moved), model.state_dict()
        matching = _matching("drawn", self.drawn, wanted)
        zero = _matching("zero", self.zero, matching)
        new = matching - given.keys()
        told = disagreements(given, {name: tensor for name, tensor in wanted.items() if name not in new})
        if told:
            raise UserError(
                "added_parts: the run (there) has other weights than the recipe's model (here; what drawn names left "
                "out):\n  " + "\n  ".join(told) + "\nwrite model as the run's recipe has it, but for parts that are "
                "added, and name the weights of these in drawn"
            )
        return given | {name: torch.zeros_like(wanted[name]) if name in zero else wanted[name] for name in new}


def _moved(given: dict[str, Tensor], moved: dict[str, str]) -> dict[str, Tensor]:
    """Weights by the names that they have in the model: the innermost module that is moved decides."""
    inside = {name: [path for path in moved if name.startswith(f"{path}.")] for name in given}
    for path in moved:
        if not any(path in paths for paths in inside.values()):
            raise UserError(f"added_parts: moved: '{path}' is no module of the run that has weights")
    found = {}
    for name, tensor in given.items():
        path = max(inside[name], key=len, default="")
        found[moved[path] + name.removeprefix(path) if path else name] = tensor
    return found


def _matching(argument: str, patterns: list[str], names: Any) -> set[str]:
    try:
        return chosen(patterns, names)
    except ValueError as error:
        raise UserError(f"added_parts: {argument}: {error}") from None
