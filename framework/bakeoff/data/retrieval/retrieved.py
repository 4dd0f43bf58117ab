"""`Retrieved`: the database of a recipe's data, and what its splits find there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from bakeoff.data.loading import Rows
from bakeoff.data.packing import Batch
from bakeoff.data.preparing import Preparation
from bakeoff.data.retrieval.ahead import Ahead, neighbours_of
from bakeoff.data.retrieval.batches import NeighbourRows, laid_out
from bakeoff.data.retrieval.database import Database
from bakeoff.data.retrieval.grid import grid
from bakeoff.data.retrieval.lookup import Lookup
from bakeoff.data.retrieval.section import Retrieval
from bakeoff.data.store import TokenStore
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.files import seal


class Retrieved:
    """Nothing of it is made before it is asked for; then it is found in the cache, or made there.

    Parameters
    ----------
    corpus, tokenizer, stores : of the data; the tokenizer is trained. learnt : a hash of what it has learnt.
    length, isolate : how the data's rows are cut.
    """

    def __init__(
        self,
        retrieval: Retrieval,
        *,
        corpus: Corpus,
        tokenizer: Tokenizer,
        learnt: str,
        stores: Mapping[str, TokenStore],
        length: int,
        isolate: bool,
        cache: Path,
        progress: bool,
    ):
        self.retrieval, self.corpus, self.tokenizer, self.learnt = retrieval, corpus, tokenizer, learnt
        self.stores, self.length, self.isolate = stores, length, isolate
        self.cache, self.progress = cache, progress
        self._ahead: dict[str, Ahead] = {}

    @cached_property
    def database(self) -> Database:
        """What is retrieved from, whether its index is made or not; `UserError` where it has too few chunks."""
        corpus, store = self.corpus, self.stores["train"]
        if self.retrieval.corpus is not None:
            corpus = self.retrieval.corpus
            work = Preparation(corpus, self.cache, progress=self.progress)
            store = TokenStore(work.store(self.tokenizer, self.learnt), "train")
        return Database(
            retrieval=self.retrieval,
            store=store,
            tokenizer=self.tokenizer,
            corpus=corpus.fingerprint(),
            learnt=self._tokenizer,
            cache=self.cache,
        )

    @cached_property
    def lookup(self) -> Lookup:
        """The database, ready to be searched."""
        return Lookup(self.database.prepare(progress=self.progress))

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides what is found; nothing is made for it."""
        asked = self.retrieval
        corpus = (asked.corpus or self.corpus).fingerprint()
        found = [corpus, self._tokenizer, asked.retriever.fingerprint(), asked.chunk, asked.share, asked.k]
        return seal(found)[:16]

    def find(self, split: str) -> Ahead | None:
        """The neighbours of all chunks of a split; None where each batch is searched for when it is drawn."""
        if self.retrieval.live:
            return None
        if split not in self._ahead:
            self._ahead[split] = neighbours_of(
                self.lookup,
                self.stores[split],
                length=self.length,
                isolate=self.isolate,
                cache=self.cache,
                progress=self.progress,
            )
        return self._ahead[split]

    def of(self, store: TokenStore, starts: np.ndarray, length: int) -> Batch:
        """What is found now for the rows of any length that begin at `starts` of a split, as batches hold it."""
        chunks = grid(store, starts, length, self.retrieval.chunk, isolate=self.isolate)
        return laid_out(self.lookup, chunks, self.lookup.found(store, chunks).numbers, len(starts))

    def rows(self, rows: Rows) -> NeighbourRows:
        """The same rows with what is found for them."""
        return NeighbourRows(rows, self.lookup, self.find(rows.store.split))

    @property
    def _tokenizer(self) -> str:
        return seal([f"{type(self.tokenizer).__module__}:{type(self.tokenizer).__qualname__}", self.learnt])[:16]
