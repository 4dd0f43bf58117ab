"""The kinds of index over vectors: what they cost, and what they find, differs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bakeoff.errors import UserError

from bakeoff_retro.search.libraries import faiss
from bakeoff_retro.search.vector_index import BLOCK_BYTES, VectorIndex

#: Vectors that lists and codes are learnt from, unless the lists need more.
SAMPLE = 2**17
#: Vectors for each list, below which FAISS holds k-means to be unsure.
PER_LIST = 39
#: Candidates that a neighbour is chosen from where vectors are known by codes alone.
SPREAD = 16


def flat_index(vectors: np.ndarray, *, metric: str = "inner_product") -> VectorIndex:
    """Compares with every vector; nothing is built."""
    return VectorIndex(vectors, metric=metric)


def ivf_pq_index(
    vectors: np.ndarray,
    *,
    lists: int | None = None,
    probes: int | None = None,
    code_bytes: int | None = None,
    metric: str = "inner_product",
) -> VectorIndex:
    """Vectors in `lists` by nearest centre, each as a code of `code_bytes`; a search reads `probes` of the lists.

    By default lists are 4 sqrt(n), but no more than n / 39 or than a sample of 2^17 can teach; probes the root of the
    lists; a code has a byte for each 8 numbers. The codes of a database of fewer than 256 vectors are of fewer bits.

    Raises `UserError` where there are fewer vectors than lists, `ValueError` where `code_bytes` does not divide D.
    """
    n, width = vectors.shape
    if lists is not None and lists > n:
        raise UserError(f"ivf_pq: lists is {lists}, and the database has {n} chunks: take {n} lists or fewer")
    lists = lists or max(1, min(round(4 * math.sqrt(n)), min(n, SAMPLE) // PER_LIST))
    code_bytes = code_bytes or max(d for d in range(1, max(1, width // 8) + 1) if width % d == 0)
    check_code_bytes(code_bytes, width)
    bits = max(1, min(8, int(math.log2(n))))
    library = faiss("retriever 'ivf_pq'")
    index = library.index_factory(width, f"IVF{lists},PQ{code_bytes}x{bits}", _metric(library, metric))
    index.do_polysemous_training = False
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    index.nprobe = min(probes or math.ceil(math.sqrt(lists)), lists)
    library.omp_set_num_threads(torch.get_num_threads())
    index.train(_sample(vectors, max(SAMPLE, lists * PER_LIST)))
    _add(index, vectors)
    return VectorIndex(vectors, index, metric=metric, spread=SPREAD)


def hnsw_index(
    vectors: np.ndarray, *, m: int = 16, ef_construction: int = 100, ef_search: int = 64, metric: str = "inner_product"
) -> VectorIndex:
    """A graph with `m` links a vector and level (twice as many on the lowest), walked with `ef_search` candidates.

    It holds the vectors themselves in memory. It is built on one thread, so that the same vectors give the same graph.
    """
    library = faiss("retriever 'hnsw'")
    index = library.IndexHNSWFlat(vectors.shape[1], m, _metric(library, metric))
    index.hnsw.efConstruction, index.hnsw.efSearch = ef_construction, ef_search
    library.omp_set_num_threads(1)
    _add(index, vectors)
    return VectorIndex(vectors, index, metric=metric)


def load_index(path: Path, vectors: np.ndarray, *, metric: str = "inner_product") -> VectorIndex:
    """What `VectorIndex.save` wrote of the same vectors; `UserError` naming a file that is damaged or of others."""
    library = faiss("an index of vectors")
    try:
        index = library.read_index(str(path))
    except RuntimeError as error:
        raise UserError(f"{path} is damaged or cut short: FAISS cannot read it") from error
    if (index.ntotal, index.d) != vectors.shape:
        raise UserError(f"{path} holds {index.ntotal} vectors of {index.d} numbers, not the {vectors.shape} beside it")
    spread = SPREAD if hasattr(index, "pq") else 1
    return VectorIndex(vectors, index, metric=metric, spread=spread)


def check_code_bytes(code_bytes: int, width: int) -> None:
    """`ValueError` where `code_bytes` does not divide `width`."""
    if width % code_bytes:
        near = min((d for d in range(1, width + 1) if width % d == 0), key=lambda d: (abs(d - code_bytes), d))
        raise ValueError(
            f"code_bytes is {code_bytes} and must divide the width {width} of the vectors; nearest that does: {near}"
        )


def _metric(library: Any, metric: str) -> int:
    return library.METRIC_L2 if metric == "euclidean" else library.METRIC_INNER_PRODUCT


def _sample(vectors: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the vectors, spread evenly; at least the two that a code of one bit tells apart."""
    numbers = np.linspace(0, len(vectors) - 1, max(2, min(most, len(vectors)))).astype(np.int64)
    return np.ascontiguousarray(vectors[numbers], np.float32)


def _add(index: Any, vectors: np.ndarray) -> None:
    step = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    for start in range(0, len(vectors), step):
        index.add(np.ascontiguousarray(vectors[start : start + step], np.float32))
