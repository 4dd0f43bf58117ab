"""`Lookup`: a database that is searched for what is like a text."""

from __future__ import annotations

from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bakeoff.data.retrieval.database import Database
from bakeoff.data.retrieval.grid import Grid
from bakeoff.data.retrieval.own import hull, own_documents
from bakeoff.data.store import TokenStore
from bakeoff.interfaces.retriever import Found


class Lookup:
    """Searches a database, and reads what was found there.

    Attributes
    ----------
    chunk : tokens of a chunk. k : neighbours of each.
    """

    def __init__(self, database: Database):
        self.database = database
        self.chunk, self.k = database.retrieval.chunk, database.retrieval.k
        self._own: dict[tuple[Path, str], np.ndarray] = {}

    def __len__(self) -> int:
        """Chunks of the database."""
        return len(self.database.table)

    def search(self, texts: Items[str], k: int | None = None, exclude: np.ndarray | None = None) -> Found:
        """The `k` chunks (None: those of the recipe) that are most like each text; numbers are of the database.

        `exclude` (n, 2) int64: numbers from the first up to, not including, the second are not given to that text.
        """
        k = self.k if k is None else k
        if not len(texts):
            return Found(np.zeros((0, k), dtype=np.int64), np.zeros((0, k), dtype=np.float32))
        return self.database.index.neighbours(texts, k, exclude)

    def neighbours(self, chunks: Items[Items[int]], exclude: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
        """Tokens (n, k, 2 * chunk) long of the neighbours of n chunks, given as ids, and bool which of them are real.

        A neighbour is the chunk that was found and what follows it in its document.
        """
        return self.chunk_tokens(self.search(self.texts(chunks), exclude=exclude).numbers)

    def chunk_tokens(self, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """The same for chunks of the database by number, (…, 2 * chunk) each; -1 is no chunk."""
        tokens, real = self.database.table.tokens(np.asarray(numbers), self.database.tokenizer.padding)
        return torch.from_numpy(tokens), torch.from_numpy(real)

    def texts(self, chunks: Items[Items[int]]) -> list[str]:
        """What is searched for, of chunks given as ids."""
        return [self.database.tokenizer.decode(chunk) for chunk in chunks]

    def text(self, number: int) -> str:
        """The text of one chunk of the database."""
        return self.database.texts[number : number + 1][0]

    def documents(self, numbers: np.ndarray) -> np.ndarray:
        """The document of each chunk, by its number in the split that the database is made of."""
        return self.database.table.documents(np.asarray(numbers))

    def excluded(self, store: TokenStore, documents: np.ndarray) -> np.ndarray | None:
        """(n, 2) the chunks of n runs of documents of a split, (n, 2) first and last; None where it has none of them.

        A document is found by its tokens where the database is of another corpus; of a run whose documents do not stand
        together there, what stands between them is excluded as well.
        """
        place = (store.folder, store.split)
        if place not in self._own:
            self._own[place] = own_documents(store, self.database.store)
        runs = hull(self._own[place], documents)
        there, firsts = runs[:, 0] >= 0, self.database.table.firsts
        if not there.any():
            return None
        return np.where(there[:, None], np.stack([firsts[runs[:, 0]], firsts[runs[:, 1] + 1]], axis=1), 0)

    def found(self, store: TokenStore, chunks: Grid) -> Found:
        """What is found for chunks of a split's rows, never in the documents that `Grid` names."""
        ids = store.tokens[chunks.starts[:, None] + np.arange(self.chunk)].tolist()
        return self.search(self.texts(ids), exclude=self.excluded(store, chunks.documents))
