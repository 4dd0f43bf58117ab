"""Section `data.retrieval` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.retriever import Retriever


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """What is looked up for each chunk of a row, and where.

    The database is cut into chunks of so many tokens from each document's first on; as a neighbour, a chunk gives
    itself and what follows it in its document, up to twice as many tokens. A chunk of a row is given no neighbour of
    its own document (Borgeaud et al. 2022, arXiv:2112.04426), nor, where `data.isolate_documents` is false, of those
    behind it in its row, whose tokens see what is found.

    Parameters
    ----------
    retriever : what searches the database.
    chunk : tokens of a chunk, of the database's and of a row's.
    k : neighbours of each chunk.
    corpus : the database is its train split; None: the train split of `data.corpus`.
    share : of the database's documents, so large a part, evenly spread.
    index : a folder that `bakeoff index` wrote; None: one in the cache, made when it is first needed.
    live : search when a batch is drawn, instead of ahead of training for all chunks of a split.
    """

    retriever: Retriever
    chunk: int = 64
    k: int = 2
    corpus: Corpus | None = None
    share: float = 1.0
    index: str | None = None
    live: bool = False

    def __post_init__(self) -> None:
        for name, value in (("chunk", self.chunk), ("k", self.k)):
            if value < 1:
                raise UserError(f"data.retrieval.{name} is {value}; it must be at least 1")
        if not 0 < self.share <= 1:
            raise UserError(f"data.retrieval.share is {self.share:g}; it must be above 0 and at most 1")

    def check_length(self, length: int) -> None:
        """Raise `UserError` where no row of so many tokens holds a chunk."""
        if length < self.chunk:
            raise UserError(
                f"data.retrieval.chunk is {self.chunk}, and data.length is {length}: no row holds a whole chunk, for "
                f"which something could be looked up; set data.retrieval.chunk to at most {length}"
            )
