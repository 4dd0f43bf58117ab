"""Kind `converter`: weights of another model made into weights of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Component

if TYPE_CHECKING:
    from torch import Tensor, nn


class Converter(Component):
    """Weights by name and layout, exact and complete.

    A class does one of two things. By default it speaks of weights that somebody else published, and goes both ways:
    `to_ours` and `to_theirs`. With `of_runs` it makes the first values of a model from a trained one of another
    shape, and goes one way: `from_run`. What a class does not define, it refuses.
    Each raises `UserError` naming every weight, of either side, that has no counterpart or another shape.
    """

    kind = "converter"
    of_runs: bool = False

    def to_ours(self, theirs: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """What `model.load_state_dict` takes, made of published tensors by name."""
        raise UserError(f"{type(self).__name__} makes a model from a run of ours, not from published weights")

    def to_theirs(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's weights by published name, in the published layout."""
        raise UserError(
            f"{type(self).__name__} knows no published layout; give the recipe a converter that does, such as name_map"
        )

    def from_run(self, source: nn.Module, model: nn.Module, seed: int) -> dict[str, Tensor]:
        """What `model.load_state_dict` takes, made of a trained model's weights.

        `model` holds its own drawn values, which what has no counterpart keeps. What is drawn besides is decided by
        `seed` alone. Neither model is changed.
        """
        raise UserError(f"{type(self).__name__} reads published weights, not a run of ours")
