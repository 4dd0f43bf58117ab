"""What a policy expects of the rest of an answer."""

from __future__ import annotations

from bakeoff.interfaces import init
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.part import Part
from torch import Tensor

from bakeoff_align.scored import Readout


class ValueHead(Part):
    """`w h + b` of hidden states, (B, T, D) -> (B, T); 0 before it has learnt anything."""

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.readout = Readout(context.d_model)

    def reset_parameters(self) -> None:
        """All zero."""
        init.fill(self.readout.weight, init.constant(0.0))

    def forward(self, hidden: Tensor) -> Tensor:
        """Values (B, T)."""
        return self.readout(hidden)[..., 0]
