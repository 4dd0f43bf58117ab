"""What a model may be shown of a database for given chunks: what was found, and what was not looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from bakeoff.data import Data
from bakeoff.data.retrieval.lookup import Lookup
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.tasks.chunk_losses import Chunked
from bakeoff.interfaces.retriever import Found

#: Chunks that are searched for in one call.
AT_ONCE = 1024


def searched(lookup: Lookup, chunked: Chunked, k: int, told: Callable[[int, int], None]) -> Found:
    """The `k` nearest of each chunk, none in a document that it touches; `told` hears how many of all are done."""
    n, exclude, found = len(chunked), _excluded(lookup, chunked), []
    for start in range(0, n, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        texts = lookup.texts(chunked.ids[part].tolist())
        found.append(lookup.search(texts, k, None if exclude is None else exclude[part]))
        told(min(start + AT_ONCE, n), n)
    numbers, scores = zip(*found, strict=True)
    return Found(np.concatenate(numbers), np.concatenate(scores))


def foreign(lookup: Lookup, chunked: Chunked, numbers: np.ndarray) -> np.ndarray:
    """The neighbours `numbers` (n, k) of each chunk, but -1 for those in a document that it touches."""
    exclude = _excluded(lookup, chunked)
    if exclude is None:
        return numbers
    own = (numbers >= exclude[:, :1]) & (numbers < exclude[:, 1:])
    return np.where(own, -1, numbers)


def _excluded(lookup: Lookup, chunked: Chunked) -> np.ndarray | None:
    """(n, 2), for each chunk the first number and the one past the last of its own documents."""
    return lookup.excluded(chunked.measured.data.store("validation"), chunked.grid.documents)


def deranged(n: int, seed: int) -> np.ndarray:
    """An order of 0 .. n - 1, drawn from a seed, in which no number stands in its own place; n is at least 2."""
    if n < 2:
        raise CapabilityError(
            f"retrieval: the text that is read has {n} whole chunks, and it takes 2 to exchange their neighbours; let "
            "tokens be more"
        )
    circle = np.random.default_rng(seed).permutation(n)
    order = np.empty(n, np.int64)
    order[circle] = np.roll(circle, 1)
    return order


def drawn(lookup: Lookup, n: int, k: int, seed: int) -> np.ndarray:
    """(n, k) chunks of the database, drawn from a seed."""
    return np.random.default_rng(seed).integers(0, len(lookup), (n, k))


def of_share(measured: Measured, share: float) -> Lookup:
    """A database of another share of the documents, its index made or found in the cache.

    Raises `CapabilityError` where there is no such, such as one of fewer chunks than neighbours are asked for.
    """
    recipe = measured.recipe.override({"data.retrieval.share": share, "data.retrieval.index": None})
    try:
        return cast(Data, recipe.build("data")).prepare(progress=False).lookup()
    except UserError as error:
        raise CapabilityError(f"retrieval: of a share of {share:g} of the database: {error}") from error
