"""What searches of every kind are asked, and what they give back."""

from __future__ import annotations

import numpy as np
from bakeoff.interfaces import Found


def check_asked(queries: int, k: int, exclude: np.ndarray | None) -> np.ndarray:
    """`exclude`, or one that excludes nothing; `ValueError` where it has not a row a query, or `k` is below 1."""
    if k < 1:
        raise ValueError(f"k is {k}; at least 1 neighbour must be asked for")
    if exclude is None:
        return np.zeros((queries, 2), np.int64)
    if exclude.shape != (queries, 2):
        raise ValueError(f"exclude is {exclude.shape}; {queries} queries take ({queries}, 2)")
    return exclude


def nothing(queries: int, k: int) -> Found:
    """`k` times nothing for each query."""
    return Found(np.full((queries, k), -1), np.full((queries, k), -np.inf, np.float32))


def first_of(numbers: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `k` by falling score, then rising number; (q, k), filled up with -1 and -inf."""
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    lack = ((0, 0), (0, k - order.shape[1]))
    return (
        np.pad(np.take_along_axis(numbers, order, 1), lack, constant_values=-1),
        np.pad(np.take_along_axis(scores, order, 1), lack, constant_values=-np.inf),
    )
