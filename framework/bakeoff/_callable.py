"""Packages that are called by their own name: `bakeoff.recipe(path)` beside `from bakeoff.recipe import Recipe`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function of the package that bears the package's name."""
        return getattr(self, self.__name__.rpartition(".")[2])(*arguments, **named)


def make_callable(module_name: str) -> None:
    """Let the imported package `module_name` be called as the function of the same name that it exports."""
    sys.modules[module_name].__class__ = _CallableModule
