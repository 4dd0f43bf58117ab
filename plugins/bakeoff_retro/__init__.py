"""Models that look things up: embedders and searches, and the ways in which a model takes in what was found.

Names load when asked for, so that light commands stay light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bakeoff_retro.knn.command import DatastoreCommand
    from bakeoff_retro.knn.converter import KNNLMHead
    from bakeoff_retro.knn.head import KNNLM
    from bakeoff_retro.memorizing import MemorizingAttention
    from bakeoff_retro.prepend import Prepend
    from bakeoff_retro.retro import Retro

BAKEOFF_API = 1

_MODULES = {
    "DatastoreCommand": "knn.command",
    "KNNLM": "knn.head",
    "KNNLMHead": "knn.converter",
    "MemorizingAttention": "memorizing",
    "Prepend": "prepend",
    "Retro": "retro",
}

__all__ = [
    "KNNLM",
    "DatastoreCommand",
    "KNNLMHead",
    "MemorizingAttention",
    "Prepend",
    "Retro",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bakeoff_retro' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bakeoff_retro.{_MODULES[name]}"), name)
