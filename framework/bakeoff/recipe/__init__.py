"""Recipes: YAML -> layers laid over each other -> checked -> objects. `bakeoff.recipe(path, overrides)`."""

from bakeoff._callable import make_callable
from bakeoff.recipe.citing import references
from bakeoff.recipe.comparing import Comparison, comparison, is_comparison
from bakeoff.recipe.scripts import import_scripts
from bakeoff.recipe.single import Recipe, recipe

__all__ = ["Comparison", "Recipe", "comparison", "import_scripts", "is_comparison", "recipe", "references"]

make_callable(__name__)
