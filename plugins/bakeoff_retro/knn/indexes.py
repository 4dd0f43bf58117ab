"""Indexes over the keys of a datastore, which find most of the nearest without looking at all keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bakeoff.errors import UserError
from bakeoff.parts.files import settle
from torch import Tensor

from bakeoff_retro.knn.datastore import Datastore
from bakeoff_retro.knn.nearest import Nearest
from bakeoff_retro.search.vector_index import VectorIndex
from bakeoff_retro.search.vector_kinds import hnsw_index, ivf_pq_index, load_index

#: The kinds, by the name of their file in the datastore.
INDEXES: dict[str, Callable[..., VectorIndex]] = {"hnsw": hnsw_index, "ivf_pq": ivf_pq_index}
METRIC = "euclidean"


def write_index(store: Datastore, kind: str) -> Path:
    """Build an index of a kind and write it into the datastore, whole or not at all."""
    settle(store.folder)
    path = store.folder / kind
    INDEXES[kind](_keys(store), metric=METRIC).save(path)
    return path


def open_index(store: Datastore, kind: str) -> VectorIndex:
    """The index of a kind that the datastore holds; `UserError` saying how it gets one where it has none."""
    path = store.folder / kind
    if not path.is_file():
        raise UserError(
            f"{store.folder} has no index {kind}; add it: bakeoff datastore RUN --folder {store.folder} --search {kind}"
        )
    return load_index(path, _keys(store), metric=METRIC)


def found_by(index: VectorIndex, queries: Tensor, k: int) -> Nearest:
    """The `k` that an index takes for the nearest to `queries` (N, D), with their true distances."""
    found = index.neighbours(queries.float().cpu().numpy(), k)
    scores, numbers = (torch.from_numpy(np.ascontiguousarray(each)) for each in (found.scores, found.numbers))
    return Nearest(-scores.to(queries), numbers.to(queries.device))


def _keys(store: Datastore) -> np.ndarray:
    return store.on(torch.device("cpu"))[0].numpy()
