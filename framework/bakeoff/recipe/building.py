"""One node by itself -> the factory or the object that it stands for; for nodes that stand in no recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bakeoff.interfaces.part import Part
from bakeoff.recipe.checker import Checker
from bakeoff.recipe.factory import make
from bakeoff.recipe.node import shorten
from bakeoff.recipe.slips import lines, report
from bakeoff.recipe.wanted import Wanted
from bakeoff.registry import interface_of


def factory(node: Mapping[str, Any], kind: str) -> Any:
    """A part's factory, to be called with a `LayerContext`; of other kinds, the object itself.

    Raises `RecipeError` with every slip.
    """
    interface = interface_of(kind)
    checker = Checker()
    checked = checker.node(shorten(node), Wanted(interface, 1 if issubclass(interface, Part) else None), kind)
    report(lines(checker.slips, {}, checker.valid), kind)
    return make(checked, kind, checker.makers)
