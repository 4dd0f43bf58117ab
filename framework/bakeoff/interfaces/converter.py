"""Kind `converter`: weights in the layout that somebody else published <-> weights of a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bakeoff.interfaces.component import Component

if TYPE_CHECKING:
    from torch import Tensor, nn


class Converter(Component):
    """Names and layouts of weights, both ways, exact and complete.

    Both methods raise `UserError` naming every weight, of either side, that has no counterpart or another shape.
    """

    kind = "converter"

    @abstractmethod
    def to_ours(self, theirs: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """What `model.load_state_dict` takes, made of published tensors by name."""

    @abstractmethod
    def to_theirs(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's weights by published name, in the published layout."""
