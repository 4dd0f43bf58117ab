"""Kind `tokenizer`: text <-> ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np

from bakeoff.interfaces.component import Component

#: Control ids that every tokenizer reserves, after its text ids, in this order.
RESERVED = ("padding", "end", "mask")


class Tokenizer(Component):
    """Text is data: what is written in a document never becomes a control id.

    Text ids are 0 .. `text_size` - 1; the reserved ids of `RESERVED` follow; `vocab_size` counts both.
    """

    kind = "tokenizer"
    lossless: bool = True
    """decode(encode(text)) == text for every text; else bits per byte are refused."""
    learns: bool = True
    """`train` decides the ids; else they are fixed when it is built."""

    @abstractmethod
    def train(self, texts: Iterable[str]) -> None:
        """Learn from texts; the same texts, in any order, give the same tokenizer. A no-op where nothing is learnt."""

    @property
    @abstractmethod
    def text_size(self) -> int:
        """How many ids stand for text."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of a text; never a reserved id."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The bytes that a text id stands for; b"" for a reserved id."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write all that `load` needs into an existing folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer that `save` wrote."""

    @property
    def vocab_size(self) -> int:
        return self.text_size + len(RESERVED)

    @property
    def padding(self) -> int:
        return self.text_size

    @property
    def end(self) -> int:
        """The id that follows each document."""
        return self.text_size + 1

    @property
    def mask(self) -> int:
        return self.text_size + 2

    def encode_batch(self, texts: Items[str], threads: int = 1) -> list[list[int]]:
        """Ids of several texts; a class with a faster way overrides this."""
        return [self.encode(text) for text in texts]

    def encode_arrays(self, texts: Items[str], threads: int = 1) -> list[np.ndarray]:
        """`encode_batch` as arrays of an unsigned type, one (n,) array a text: what a token store is filled from."""
        return [np.asarray(ids, dtype=np.uint32) for ids in self.encode_batch(texts, threads)]

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of a run of ids; reserved ids add nothing."""
        return b"".join(self.token_bytes(int(token)) for token in tokens)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a run of ids; bytes that are no UTF-8 become replacement characters."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def bytes_per_token(self) -> np.ndarray:
        """(V,) int32: how many bytes of text each id stands for, 0 for reserved ids."""
        return np.array([len(self.token_bytes(i)) for i in range(self.vocab_size)], dtype=np.int32)
