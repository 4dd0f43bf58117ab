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
    from bakeoff_retro.search.bm25 import BM25
    from bakeoff_retro.search.flat import Flat
    from bakeoff_retro.search.hnsw import HNSW
    from bakeoff_retro.search.ivf_pq import IVFPQ
    from bakeoff_retro.search.random_chunks import RandomChunks
    from bakeoff_retro.search.sentence_encoder import SentenceEncoder
    from bakeoff_retro.search.shuffled import Shuffled
    from bakeoff_retro.search.static import Static

BAKEOFF_API = 1

_MODULES = {
    "BM25": "search.bm25",
    "DatastoreCommand": "knn.command",
    "Flat": "search.flat",
    "HNSW": "search.hnsw",
    "IVFPQ": "search.ivf_pq",
    "KNNLM": "knn.head",
    "KNNLMHead": "knn.converter",
    "MemorizingAttention": "memorizing",
    "Prepend": "prepend",
    "RandomChunks": "search.random_chunks",
    "Retro": "retro",
    "SentenceEncoder": "search.sentence_encoder",
    "Shuffled": "search.shuffled",
    "Static": "search.static",
}

__all__ = [
    "BM25",
    "HNSW",
    "IVFPQ",
    "KNNLM",
    "DatastoreCommand",
    "Flat",
    "KNNLMHead",
    "MemorizingAttention",
    "Prepend",
    "RandomChunks",
    "Retro",
    "SentenceEncoder",
    "Shuffled",
    "Static",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bakeoff_retro' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bakeoff_retro.{_MODULES[name]}"), name)
