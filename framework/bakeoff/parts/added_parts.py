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

    Raises `UserError` for a weight that only one side has, or has in another shape, and a pattern that matches none.
    """

    reference = Reference(
        "Borgeaud et al.",
        2022,
        "Improving Language Models by Retrieving from Trillions of Tokens",
        "https://arxiv.org/abs/2112.04426",
    )
    of_runs = True

    def __init__(self, *, drawn: list[str], zero: list[str] | None = None):
        self.drawn, self.zero = drawn, zero or []

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """What may be new is there already, once with a part that would begin at zero."""
        return [{"drawn": ["backbone.norm.*"]}, {"drawn": ["*.feed_forward.*"], "zero": ["*.feed_forward.down.*"]}]

    def from_run(self, source: nn.Module, model: nn.Module, seed: int) -> dict[str, Tensor]:
        """See `Converter`."""
        given, wanted = source.state_dict(), model.state_dict()
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


def _matching(argument: str, patterns: list[str], names: Any) -> set[str]:
    try:
        return chosen(patterns, names)
    except ValueError as error:
        raise UserError(f"added_parts: {argument}: {error}") from None
