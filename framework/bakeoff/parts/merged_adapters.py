"""Converter `merged_adapters`: a trained run's adapters, added to the weights that they stand beside."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bakeoff.errors import UserError
from bakeoff.interfaces.converter import Converter
from bakeoff.parts.adapters import has_adapters, merged
from bakeoff.parts.low_rank import LowRank
from bakeoff.parts.weights import disagreements


class MergedAdapters(Converter):
    """Each weight of the run under its own name, W + s B A where it has an adapter, for a recipe without `adapters:`.

    The model then computes what the run's does, but for rounding, at the cost of the plain one. A run that has no
    adapters comes back as it is. Raises `UserError` for a recipe with adapters, and for a weight that only one side
    has, or has in another shape.
    """

    reference = LowRank.reference
    of_runs = True

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{}]

    def from_run(self, source: nn.Module, model: nn.Module, seed: int) -> dict[str, Tensor]:
        """See `Converter`."""
        if has_adapters(model):
            raise UserError(
                "merged_adapters: the recipe of what is made has adapters of its own; write adapters: null, and begin "
                "a further run with weights: FOLDER"
            )
        made = merged(source)
        told = disagreements(made, model.state_dict())
        if told:
            raise UserError(
                "merged_adapters: the run (there) has other weights than the recipe's model (here):\n  "
                + "\n  ".join(told)
                + "\nwrite model as the run's recipe has it"
            )
        return made
