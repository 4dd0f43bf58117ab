"""Retriever `flat`: every vector is compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from bakeoff.interfaces import Embedder

from bakeoff_retro.search.vector_index import VectorIndex
from bakeoff_retro.search.vector_kinds import flat_index
from bakeoff_retro.search.vector_retriever import VectorRetriever


class Flat(VectorRetriever):
    """Exact, with no index beside the vectors, which are read from disk block by block: no time to build, and a search
    that takes as long as the database is large.

    Parameters
    ----------
    embedder : whose vectors are compared.
    """

    indexed = False

    def __init__(self, *, embedder: Embedder):
        super().__init__(embedder)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With the embedder that needs nothing."""
        return [{"embedder": {"use": "static"}}]

    def index(self, vectors: np.ndarray) -> VectorIndex:
        return flat_index(vectors)

    def settings(self) -> list[Any]:
        return []
