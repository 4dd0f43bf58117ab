"""bakeoff: compose, train and honestly compare language-model architectures.

Importing this package is light: torch is imported when something needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bakeoff.registry import API, find, names, register

__version__ = "0.1.0"
api = API

if TYPE_CHECKING:
    from bakeoff.compare import compare
    from bakeoff.model.generate import complete
    from bakeoff.recipe import recipe
    from bakeoff.train import load_run

_LAZY = {
    "compare": "bakeoff.compare",
    "complete": "bakeoff.model.generate",
    "load_run": "bakeoff.train",
    "recipe": "bakeoff.recipe",
}

__all__ = ["api", "compare", "complete", "find", "load_run", "names", "recipe", "register"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'bakeoff' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_LAZY[name])
    return module if module.__name__ == f"bakeoff.{name}" else getattr(module, name)
