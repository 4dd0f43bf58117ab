"""Kind `norm`: normalisation over channels."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from bakeoff.interfaces.part import Part


class Norm(Part):
    """A map (..., `context.d_model`) -> the same shape that normalises the last dimension."""

    kind = "norm"

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
