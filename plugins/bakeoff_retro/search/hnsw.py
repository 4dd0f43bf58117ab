"""Retriever `hnsw`: a graph of near vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from bakeoff.interfaces import Embedder, Reference

from bakeoff_retro.search.libraries import required
from bakeoff_retro.search.vector_index import VectorIndex
from bakeoff_retro.search.vector_kinds import hnsw_index
from bakeoff_retro.search.vector_retriever import VectorRetriever


class HNSW(VectorRetriever):
    """Quick and near to exact; the vectors and 8 `m` bytes or more for each stand in memory. Needs `retrieval`.

    Parameters
    ----------
    embedder : whose vectors are compared.
    m : links of a vector on each level of the graph, twice as many on the lowest.
    ef_construction : candidates that links are chosen from; more takes longer to build and finds more.
    ef_search : candidates of a search; more is slower and finds more.
    """

    reference = Reference(
        "Malkov, Y. A.; Yashunin, D. A.",
        2016,
        "Efficient and robust approximate nearest neighbor search using Hierarchical Navigable Small World graphs",
        "https://arxiv.org/abs/1603.09320",
    )

    def __init__(self, *, embedder: Embedder, m: int = 16, ef_construction: int = 100, ef_search: int = 64):
        required("faiss", "retriever 'hnsw'")
        super().__init__(embedder)
        if m < 2:
            raise ValueError(f"m is {m}; a vector needs 2 links at least")
        if ef_construction < m:
            raise ValueError(f"ef_construction is {ef_construction}, fewer than the m = {m} links: take {m} or more")
        if ef_search < 1:
            raise ValueError(f"ef_search is {ef_search}; it must be at least 1")
        self.m, self.ef_construction, self.ef_search = m, ef_construction, ef_search

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With the embedder that needs nothing."""
        return [{"embedder": {"use": "static"}}]

    def index(self, vectors: np.ndarray) -> VectorIndex:
        return hnsw_index(vectors, m=self.m, ef_construction=self.ef_construction, ef_search=self.ef_search)

    def settings(self) -> list[Any]:
        return [self.m, self.ef_construction, self.ef_search]
