"""The longest run of tokens that two texts have in common."""

from __future__ import annotations

from collections.abc import Sequence as Items
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

#: Pairs of texts that are compared at once.
AT_ONCE = 8192
#: Stands where a text has no token; ids are 0 or more.
NOTHING = -1


class Run(NamedTuple):
    """`size` tokens from `first` on of one text are those from `second` on of the other."""

    first: int
    second: int
    size: int


def longest_runs(texts: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n,) tokens of the longest run that each of `texts` (n, m) has in common with its own of `others` (n, L).

    `NOTHING` in `others` is like no token.
    """
    found = [
        _longest(texts[start : start + AT_ONCE], others[start : start + AT_ONCE])
        for start in range(0, len(texts), AT_ONCE)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _longest(texts: np.ndarray, others: np.ndarray) -> np.ndarray:
    """One row of the table of runs that end at (i, j) after the other, for all pairs at once."""
    n, L = others.shape
    ending, longest = np.zeros((n, L + 1), np.int32), np.zeros(n, np.int64)
    for column in texts.T:
        ending[:, 1:] = np.where(others == column[:, None], ending[:, :-1] + 1, 0)
        np.maximum(longest, ending.max(1), out=longest)
    return longest


def overlaps(chunks: np.ndarray, neighbours: np.ndarray, real: np.ndarray) -> np.ndarray:
    """(n,) the longest run that each chunk has in common with any of its neighbours, over the chunk's tokens.

    `chunks` (n, m) ids; `neighbours` (n, k, L) ids and which of them are `real`. (Borgeaud et al., 2022, section 2.6.)
    """
    n, k, L = neighbours.shape
    others = np.where(real, neighbours, NOTHING).reshape(n * k, L)
    runs = longest_runs(np.repeat(chunks, k, axis=0), others).reshape(n, k)
    return runs.max(1) / chunks.shape[1]


def common_run(text: Items[int], other: Items[int]) -> Run:
    """Where the longest run stands, the first of equals."""
    found = SequenceMatcher(None, text, other, autojunk=False).find_longest_match()
    return Run(found.a, found.b, found.size)
