"""Training: `fit(recipe)` and `load_run(path)`. Lightning is imported when something is trained."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bakeoff.train.failures import Interrupted, NotFinite, OutOfMemory
    from bakeoff.train.fitting import fit
    from bakeoff.train.published import export_weights, import_weights
    from bakeoff.train.run import Run, load_run

_HOMES = {
    "Interrupted": "failures",
    "NotFinite": "failures",
    "OutOfMemory": "failures",
    "Run": "run",
    "export_weights": "published",
    "fit": "fitting",
    "import_weights": "published",
    "load_run": "run",
}

__all__ = [
    "Interrupted", "NotFinite", "OutOfMemory", "Run", "export_weights", "fit", "import_weights", "load_run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bakeoff.train' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bakeoff.train.{_HOMES[name]}"), name)
