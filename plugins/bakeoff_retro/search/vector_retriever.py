"""Retrievers that compare vectors of texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff.errors import UserError
from bakeoff.interfaces import Embedder, Found, Index, Retriever, Texts
from bakeoff.parts.files import seal

from bakeoff_retro.search.sizes import begun, finish, opened
from bakeoff_retro.search.vector_index import VectorIndex
from bakeoff_retro.search.vector_kinds import load_index
from bakeoff_retro.search.vector_store import BATCH, open_vectors, write_vectors

VECTORS, INDEX = "vectors.f32", "index.faiss"


class VectorRetriever(Retriever):
    """Texts whose vectors have the largest inner product, which for vectors of length 1 is the cosine.

    `build` writes `vectors.f32`, which a call that was killed leaves to the next, and, where the class has an index of
    FAISS, `index.faiss`, whole or not at all.
    """

    #: Whether there is an `index.faiss`.
    indexed = True

    def __init__(self, embedder: Embedder):
        self.embedder = embedder

    @abstractmethod
    def index(self, vectors: np.ndarray) -> VectorIndex:
        """The index over (n, D) vectors of length 1, made anew."""

    @abstractmethod
    def settings(self) -> list[Any]:
        """What decides, beside the vectors, what is found."""

    def fingerprint(self) -> str:
        return seal(self.described())

    def described(self) -> dict[str, str]:
        return {"retriever": seal([type(self).__name__, self.settings()]), "embedder": self.embedder.fingerprint()}

    def build(self, texts: Texts, folder: Path, progress: Callable[[int], None]) -> None:
        """See `Retriever`: the vectors of all texts, then the index over them."""
        if not len(texts):
            raise UserError("the database holds no chunk: there is nothing to index")
        facts = {**self.described(), "count": len(texts), "width": self.embedder.width}
        files = (VECTORS, INDEX) if self.indexed else (VECTORS,)
        if begun(folder, facts, files):
            progress(len(texts))
            return
        write_vectors(folder / VECTORS, texts, self.embedder, progress)
        index = self.index(open_vectors(folder / VECTORS, len(texts), self.embedder.width))
        if self.indexed:
            index.save(folder / INDEX)
        finish(folder, facts, files)

    def load(self, folder: Path, texts: Texts) -> Index:
        facts = opened(folder, len(texts), self.described())
        vectors = open_vectors(folder / VECTORS, facts["count"], facts["width"])
        index = load_index(folder / INDEX, vectors) if self.indexed else self.index(vectors)
        return _TextIndex(self.embedder, index)


class _TextIndex(Index):
    def __init__(self, embedder: Embedder, index: VectorIndex):
        self.embedder, self.index = embedder, index

    def neighbours(self, queries: Items[str], k: int, exclude: np.ndarray | None = None) -> Found:
        return self.index.neighbours(self._embedded(queries), k, exclude)

    def exact(self, queries: Items[str], k: int, exclude: np.ndarray | None = None) -> Found:
        return self.index.exact(self._embedded(queries), k, exclude)

    def _embedded(self, queries: Items[str]) -> np.ndarray:
        parts = [self.embedder.embed(queries[at : at + BATCH]) for at in range(0, len(queries), BATCH)]
        return np.concatenate(parts) if parts else np.zeros((0, self.embedder.width), np.float32)
