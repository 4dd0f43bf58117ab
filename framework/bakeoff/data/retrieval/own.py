"""Which of a database's documents a split's own documents are."""

from __future__ import annotations

import hashlib

import numpy as np

from bakeoff.data.store import TokenStore


def own_documents(store: TokenStore, held: TokenStore) -> np.ndarray:
    """(documents,) int64, for each document of a split the number of the same one in another split, -1 for none.

    In its own split, each is itself; the other split of its corpus has none of it. In another corpus, it is the first
    of those with the same tokens, under the same tokenizer; one without text is not looked for.
    """
    if store.folder == held.folder:
        return np.arange(len(store.ends)) if store.split == held.split else np.full(len(store.ends), -1)
    hashes, known = _hashes(store), _hashes(held)
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known, hashes, sorter=order)
    found = order[np.minimum(at, len(order) - 1)] if len(order) else np.zeros(len(hashes), dtype=np.int64)
    there = (known[found] == hashes) if len(order) else np.zeros(len(hashes), dtype=bool)
    return np.where(there & (np.diff(store.ends, prepend=0) > 1), found, -1)


def hull(own: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """(n, 2) for runs of documents, (n, 2) first and last, the least and the greatest of `own` in each; -1 for none."""
    first, last = own[documents[:, 0]], own[documents[:, 0]]
    for number in np.flatnonzero(documents[:, 0] != documents[:, 1]):
        run = own[documents[number, 0] : documents[number, 1] + 1]
        run = run[run >= 0]
        first[number], last[number] = (run.min(), run.max()) if len(run) else (-1, -1)
    return np.stack([first, last], axis=1)


def _hashes(store: TokenStore) -> np.ndarray:
    """(documents,) uint64, a hash of each document's tokens."""
    hashes = np.empty(len(store.ends), dtype=np.uint64)
    begin = 0
    for number, end in enumerate(store.ends.tolist()):
        digest = hashlib.blake2b(store.tokens[begin:end].tobytes(), digest_size=8).digest()
        hashes[number], begin = int.from_bytes(digest, "little"), end
    return hashes
