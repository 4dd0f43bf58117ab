"""The chunks of a database: where each stands in its document, its text, and what it gives as a neighbour."""

from __future__ import annotations

import numpy as np

from bakeoff.data.loading import spread
from bakeoff.data.store import TokenStore
from bakeoff.interfaces.tokenizer import Tokenizer


class ChunkTable:
    """The documents of a split, or an evenly spread share of them, cut into chunks that are numbered in order.

    A document is cut from its first token on, and its last chunk may be shorter; none is its end id alone, so that a
    document without text has none.

    Attributes
    ----------
    firsts : (documents + 1,) int64, the number of each document's first chunk; its last one stands before the next
        document's first. A document that is not in the share has none.
    """

    def __init__(self, store: TokenStore, chunk: int, share: float = 1.0):
        self.store, self.chunk = store, chunk
        texts = np.diff(store.ends, prepend=0) - 1  # tokens without the end id
        if share < 1:
            chosen = spread(len(texts), max(1, round(share * len(texts))))
            left_out = np.ones(len(texts), dtype=bool)
            left_out[chosen] = False
            texts[left_out] = 0
        self.firsts = np.concatenate([[0], np.cumsum(-(-texts // chunk))])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def documents(self, numbers: np.ndarray) -> np.ndarray:
        """The document of each chunk, by its number in the split."""
        return np.searchsorted(self.firsts, numbers, side="right") - 1

    def stretches(self, numbers: np.ndarray, chunks: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each chunk begins in the split, and where so many chunks from it on end, in the same document."""
        documents = self.documents(numbers)
        ends = self.store.ends[documents]
        begins = np.where(documents > 0, self.store.ends[documents - 1], 0)
        starts = begins + (numbers - self.firsts[documents]) * self.chunk
        return starts, np.minimum(starts + chunks * self.chunk, ends)

    def tokens(self, numbers: np.ndarray, padding: int) -> tuple[np.ndarray, np.ndarray]:
        """(…, 2 * chunk) int64 and bool: each chunk and what follows it, and which of that is not `padding`.

        A number of -1 is no chunk, and all padding.
        """
        places = np.arange(2 * self.chunk)
        if not len(self):
            return np.full((*numbers.shape, len(places)), padding), np.zeros((*numbers.shape, len(places)), dtype=bool)
        starts, stops = self.stretches(np.maximum(numbers, 0), 2)
        real = (places < (stops - starts)[..., None]) & (numbers >= 0)[..., None]
        at = np.where(real, starts[..., None] + places, 0)
        return np.where(real, self.store.tokens[at].astype(np.int64), padding), real


class ChunkTexts:
    """The texts of all chunks; a slice decodes those alone."""

    def __init__(self, table: ChunkTable, tokenizer: Tokenizer):
        self.table, self.tokenizer = table, tokenizer

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, numbers: slice) -> list[str]:
        chosen = np.arange(*numbers.indices(len(self)))
        tokens, decode = self.table.store.tokens, self.tokenizer.decode
        starts, stops = self.table.stretches(chosen, 1)
        return [decode(tokens[a:b].tolist()) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
