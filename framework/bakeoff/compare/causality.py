"""Law 1 on an arm before it is trained: no output depends on a later token."""

from __future__ import annotations

from typing import Any

from bakeoff.parts.causal import Causal
from bakeoff.recipe import Recipe


def probe(recipe: Recipe, known: dict[Any, Any]) -> str | None:
    """Why an arm must not be compared: how it sees the future; or None.

    `known` holds what was found of layers that arms have in common: give the same dictionary for all arms.
    """
    from bakeoff.testing import check_model  # slow to import, and not needed where all arms were probed before

    model = recipe.demands()
    if isinstance(recipe.build("objective"), Causal) and not model.backbone.capabilities.causal:
        return "its parts disclaim `causal`: in next-token prediction they would see what they are to predict"
    failures = check_model(model, laws=(1,), known=known).failures
    return None if not failures else f"not causal: layer {failures[0].arguments['layers'][0]}, {failures[0].reason}"
