"""What a measure is given."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from bakeoff.data import Data
from bakeoff.evaluate.precision import autocast
from bakeoff.interfaces.objective import Objective
from bakeoff.model import LanguageModel
from bakeoff.recipe import Recipe


@dataclass(frozen=True)
class Measured:
    """A trained model and how it was trained; measures leave all of it as it is.

    Attributes
    ----------
    data : prepared. device : where the model stands. batch, length : rows of a micro-batch, and tokens in a row.
    """

    model: LanguageModel
    data: Data
    objective: Objective
    recipe: Recipe
    device: torch.device
    batch: int
    length: int

    @classmethod
    def of(cls, model: LanguageModel, data: Data, recipe: Recipe) -> Measured:
        """The model of a run, with the run's data (prepared here if they are not) and recipe."""
        data.prepare(progress=False)
        device = model.backbone.embedding.device
        return cls(model, data, recipe.build("objective"), recipe, device, data.micro(), data.length)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context that the recipe's forward runs in."""
        return autocast(self.recipe, self.device)
