"""Law 1 on an arm before it is trained: no output depends on a later token."""

from __future__ import annotations

from typing import Any

from bakeoff.recipe import Recipe
from bakeoff.recipe.demands import foresight


def probe(recipe: Recipe, known: dict[Any, Any]) -> str | None:
    """Why an arm must not be compared: how it sees the future; or None.

    `known` holds what was found of layers that arms have in common: give the same dictionary for all arms.
    """
    from bakeoff.testing import check_model  # slow to import, and not needed where all arms were probed before

    model = recipe.demands()
    reason = foresight(recipe, model)
    if reason is not None:
        return reason
    failures = check_model(model, laws=(1,), known=known).failures
    return None if not failures else f"not causal: layer {failures[0].arguments['layers'][0]}, {failures[0].reason}"
