"""Search among vectors: by comparison with all of them, or through an index of FAISS whose finds are compared anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from bakeoff.interfaces import Found
from bakeoff.parts.files import replacing, sync_folder
from torch import Tensor

from bakeoff_retro.search.finding import check_asked, first_of, nothing
from bakeoff_retro.search.libraries import faiss

#: Bytes of vectors, and of scores, that are held at once.
BLOCK_BYTES = 2**26
#: Candidates that are compared anew beyond those asked for, so that equal scores are told apart by number.
SPARE = 8
#: Candidates of one query above which comparing it with every vector is no slower.
MOST = 1024

#: How near vectors are: (q, D) and (m, D), or (q, c, D) candidates, -> scores, more is nearer.
METRICS = ("inner_product", "euclidean")


class VectorIndex:
    """Finds the vectors that are nearest to others.

    Scores are inner products, or for `metric="euclidean"` squared distances, negative; always those of the vectors
    themselves in float32, not of their codes. Of equal scores the lower number comes first.

    Parameters
    ----------
    vectors : (n, D) of a floating type, such as a memory map; read block by block.
    candidates : an index of FAISS over them by the same metric, with the parameters of its search; None: every vector
        is compared.
    spread : how many candidates a neighbour asked for is chosen from, where codes are coarse.
    """

    def __init__(self, vectors: np.ndarray, candidates: Any = None, *, metric: str = "inner_product", spread: int = 1):
        if vectors.ndim != 2 or not len(vectors):
            raise ValueError(f"vectors are (n, D) with n >= 1, not {vectors.shape}")
        if metric not in METRICS:
            raise ValueError(f"metric is '{metric}'; it must be one of {', '.join(METRICS)}")
        self.vectors, self.candidates, self.metric, self.spread = vectors, candidates, metric, spread

    def __len__(self) -> int:
        return len(self.vectors)

    def neighbours(self, vectors: np.ndarray, k: int, exclude: np.ndarray | None = None) -> Found:
        """The `k` nearest to each of (q, D); `exclude` (q, 2), -1 and -inf as in `Index.neighbours`.

        Where exclusion leaves fewer than `k` of the candidates, more are asked for, and at last all are compared.
        """
        queries, exclude = self._asked(vectors, k, exclude)
        found = nothing(len(queries), k)
        left = np.arange(len(queries))
        ask = max(k * self.spread, k + SPARE)
        while self.candidates is not None and len(left) and ask <= min(MOST, len(self)):
            numbers = _searched(self.candidates, queries[left], ask)
            numbers[_within(numbers, exclude[left])] = -1
            _put(found, left, self._best(queries[left], numbers, k))
            left = left[found.numbers[left, -1] < 0]
            ask *= 8
        if len(left):
            _put(found, left, self.exact(queries[left], k, exclude[left]))
        return found

    def exact(self, vectors: np.ndarray, k: int, exclude: np.ndarray | None = None) -> Found:
        """The same by comparison with every vector."""
        queries, exclude = self._asked(vectors, k, exclude)
        found = nothing(len(queries), k)
        step = max(1, BLOCK_BYTES // (4 * self.vectors.shape[1]))
        rows = max(1, BLOCK_BYTES // (4 * min(step, len(self))))
        for at in range(0, len(queries), rows):
            some = slice(at, at + rows)
            numbers = np.full((len(queries[some]), 0), -1)
            scores = np.zeros(numbers.shape, np.float32)
            for start in range(0, len(self), step):
                block = self._block(slice(start, start + step))
                numbers, scores = _merged(
                    (numbers, scores), _top(_scores(queries[some], block, self.metric), start, k, exclude[some]), k
                )
            _put(found, np.arange(len(queries))[some], self._best(queries[some], numbers, k))
        return found

    def save(self, path: Path) -> None:
        """Write the index of FAISS, whole or not at all; there must be one."""
        library = faiss("an index of vectors")
        with replacing(path, path.with_name(f"{path.name}.tmp")) as file:
            library.write_index(self.candidates, library.PyCallbackIOWriter(file.write))
        sync_folder(path.parent)

    def _asked(self, vectors: np.ndarray, k: int, exclude: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if vectors.ndim != 2 or vectors.shape[1] != self.vectors.shape[1]:
            raise ValueError(f"queries are {vectors.shape}; this index takes (q, {self.vectors.shape[1]})")
        return np.ascontiguousarray(vectors, np.float32), check_asked(len(vectors), k, exclude)

    def _block(self, numbers: Any) -> np.ndarray:
        return np.require(self.vectors[numbers], np.float32, ["C", "W"])

    def _best(self, queries: np.ndarray, numbers: np.ndarray, k: int) -> Found:
        """The `k` best of (q, c) candidates, -1 where there is none, by the vectors themselves."""
        scores = np.full(numbers.shape, -np.inf, np.float32)
        rows = max(1, BLOCK_BYTES // (4 * self.vectors.shape[1] * max(1, numbers.shape[1])))
        for at in range(0, len(queries), rows):
            some = slice(at, at + rows)
            theirs = self._block(np.maximum(numbers[some], 0).ravel()).reshape(*numbers[some].shape, -1)
            if self.metric == "euclidean":
                scores[some] = -np.square(theirs - queries[some, None]).sum(-1)
            else:
                scores[some] = (theirs * queries[some, None]).sum(-1)
        scores[numbers < 0] = -np.inf
        return Found(*first_of(numbers, scores, k))


def _searched(index: Any, queries: np.ndarray, ask: int) -> np.ndarray:
    """Numbers of candidates, on as many threads as torch has here: one pool is not set against another."""
    faiss("an index of vectors").omp_set_num_threads(torch.get_num_threads())
    return index.search(queries, ask)[1]


def _scores(queries: np.ndarray, block: np.ndarray, metric: str) -> Tensor:
    q, x = torch.from_numpy(queries), torch.from_numpy(block)
    products = q @ x.T
    return products if metric == "inner_product" else 2 * products - x.square().sum(1) - q.square().sum(1, True)


def _top(scores: Tensor, start: int, k: int, exclude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best of a block's scores (q, m), and some more, without those that are excluded; numbers begin at `start`."""
    bounds = np.clip(exclude - start, 0, scores.shape[1])
    for row in np.flatnonzero(bounds[:, 0] < bounds[:, 1]):
        scores[row, bounds[row, 0] : bounds[row, 1]] = -torch.inf
    best = scores.topk(min(k + SPARE, scores.shape[1]), dim=1)
    values, numbers = best.values.numpy(), best.indices.numpy() + start
    numbers[np.isneginf(values)] = -1
    return numbers, values


def _merged(
    one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], k: int
) -> tuple[np.ndarray, np.ndarray]:
    numbers, scores = (np.concatenate(pair, 1) for pair in zip(one, other, strict=True))
    return first_of(numbers, scores, k + SPARE)


def _within(numbers: np.ndarray, exclude: np.ndarray) -> np.ndarray:
    return (numbers >= exclude[:, :1]) & (numbers < exclude[:, 1:])


def _put(found: Found, rows: np.ndarray, some: Found) -> None:
    found.numbers[rows], found.scores[rows] = some
