"""Retriever `ivf_pq`: an inverted file of product codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from bakeoff.interfaces import Embedder, Reference

from bakeoff_retro.search.libraries import required
from bakeoff_retro.search.vector_index import VectorIndex
from bakeoff_retro.search.vector_kinds import check_code_bytes, ivf_pq_index
from bakeoff_retro.search.vector_retriever import VectorRetriever


class IVFPQ(VectorRetriever):
    """Small: of each vector the index holds a code and its number; those that seem nearest are compared on disk.

    Vectors stand in `lists`, by the nearest of as many centres; of each a product code of `code_bytes` is kept. A
    search reads `probes` of the lists. Centres and codes are learnt from a sample. Needs the extra `retrieval`.

    Parameters
    ----------
    embedder : whose vectors are compared.
    lists : None: 4 sqrt(n) for n chunks, but no more than n / 39, nor than the sample of 2^17 can teach. More than the
        database has chunks is an error: take fewer.
    probes : None: the root of the lists. More is slower and finds more.
    code_bytes : must divide the embedder's width; None: one for each 8 numbers. In a database of fewer than 256 chunks
        codes have fewer bits.
    """

    reference = Reference(
        "Jégou, H.; Douze, M.; Schmid, C.",
        2011,
        "Product Quantization for Nearest Neighbor Search",
        "https://doi.org/10.1109/TPAMI.2010.57",
    )

    def __init__(
        self,
        *,
        embedder: Embedder,
        lists: int | None = None,
        probes: int | None = None,
        code_bytes: int | None = None,
    ):
        required("faiss", "retriever 'ivf_pq'")
        super().__init__(embedder)
        for name, value in (("lists", lists), ("probes", probes), ("code_bytes", code_bytes)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if lists is not None and probes is not None and probes > lists:
            raise ValueError(f"probes is {probes}, and there are {lists} lists: take {lists} probes or fewer")
        if code_bytes is not None:
            check_code_bytes(code_bytes, embedder.width)
        self.lists, self.probes, self.code_bytes = lists, probes, code_bytes

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Sizes that follow the database, and given ones."""
        static = {"use": "static"}
        return [{"embedder": static}, {"embedder": static, "lists": 4, "probes": 2, "code_bytes": 64}]

    def index(self, vectors: np.ndarray) -> VectorIndex:
        return ivf_pq_index(vectors, lists=self.lists, probes=self.probes, code_bytes=self.code_bytes)

    def settings(self) -> list[Any]:
        return [self.lists, self.probes, self.code_bytes]
