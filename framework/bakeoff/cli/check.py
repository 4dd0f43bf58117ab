"""`bakeoff check R`: all that can be known of a recipe or a comparison before it runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bakeoff.interfaces.command import Command

if TYPE_CHECKING:
    from bakeoff.recipe import Recipe

#: Causality, any split, documents, padding.
LAWS = (1, 2, 3, 4)


class Check(Command):
    """Check schema, capabilities, the laws on the recipe's own layers, and the memory that training takes."""

    help = "schema, capabilities, laws and memory of a recipe or comparison"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The recipe or comparison, and overrides."""
        parser.add_argument("recipe", help="a recipe or comparison, or bakeoff:NAME for one that is shipped")
        parser.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="values set by path")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print one line a check; the first that does not hold is an error."""
        from bakeoff.recipe import comparison, is_comparison, recipe

        if is_comparison(arguments.recipe):
            compared = comparison(arguments.recipe, arguments.overrides)
            print(f"{compared.name}: a comparison of {len(compared.arms)} arms, {len(compared.seeds)} seeds each")
            recipes, indent = compared.arms, "  "
        else:
            one = recipe(arguments.recipe, arguments.overrides).check()
            recipes, indent = {one.name: one}, ""
        known: dict[Any, Any] = {}
        for name, each in recipes.items():
            print(f"{indent}{name}  {each.hash()}", flush=True)
            for title, found in checks(each, known):
                print(f"{indent}  {title:<13} {found}", flush=True)
        return 0


def checks(recipe: Recipe, known: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    """`(what was checked, what was found)`; `known` holds the laws of layers that were checked before.

    Raises `UserError` at the first that does not hold.
    """
    yield "schema", f"ok: {', '.join(recipe.components())}"
    model = recipe.demands()
    yield "capabilities", "ok"
    yield "laws", _laws(recipe, model, known)
    yield "memory", _memory(recipe)


def _laws(recipe: Recipe, model: Any, known: dict[Any, Any]) -> str:
    from bakeoff.errors import UserError
    from bakeoff.testing import check_model

    report = check_model(model, laws=LAWS, known=known)
    if not report.ok:
        raise UserError(f"{recipe.name}: {report}")
    kept = sorted({f"{finding.number} {finding.law}" for finding in report.findings if finding.status == "passed"})
    unclaimed = sorted({finding.law for finding in report.findings if finding.status == "not claimed"})
    return f"ok: {', '.join(kept)}" + (f"; not claimed: {', '.join(unclaimed)}" if unclaimed else "")


def _memory(recipe: Recipe) -> str:
    from bakeoff.compare.words import size
    from bakeoff.evaluate.planning import plan_recipe

    planned = plan_recipe(recipe)
    if planned.memory is None:
        return "; ".join(planned.notes)
    parts = ("parameters", "gradients", "optimizer", "activations")
    shares = ", ".join(f"{part} {size(getattr(planned.memory, part))}" for part in parts)
    return f"{size(planned.memory.peak)} in training, {planned.rows} rows at a time ({shares})"
