"""How a recipe has its blocks computed: products in float8, work done anew in backward, compiled."""

from __future__ import annotations

from bakeoff.interfaces.backbone import Backbone
from bakeoff.model.recompute import recompute_blocks
from bakeoff.recipe import Recipe
from bakeoff.train.assembly import compile_blocks
from bakeoff.train.precision import multiply_in_float8


def prepare_blocks(backbone: Backbone, recipe: Recipe) -> None:
    """Do to the blocks, in place, what `trainer.fp8`, `trainer.recompute` and `compile` say; names stay as they are.

    Raises `CapabilityError` where `compile` is asked of parts that do not claim it.
    """
    if recipe.fp8:
        multiply_in_float8(backbone)
    recompute_blocks(backbone, recipe.recompute)
    if recipe.tree["compile"]:
        compile_blocks(backbone)
