"""Tokenizer `char`: one id a character of the training text's alphabet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.parts.tokenizers.spelled import SpelledTokenizer, saved_size
from bakeoff.parts.tokenizers.text import readable

CODE_POINTS = 0x110000


class CharTokenizer(SpelledTokenizer):
    """One id a character; characters that the training text lacks are spelled in the bytes of UTF-8.

    Parameters
    ----------
    vocab_size : at most so many ids, the 256 bytes (the ASCII characters among them) and the reserved ids included; the
        most frequent characters are kept. None: all characters of the training text.
    """

    name = "char"

    def __init__(self, *, vocab_size: int | None = None):
        super().__init__(vocab_size)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """The whole alphabet, and a part of it."""
        return [{}, {"vocab_size": 270}]

    def pieces(self, text: str) -> Iterable[str]:
        return readable(text)

    def encode(self, text: str) -> list[int]:
        return self.encode_arrays([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        return [self._encode_array(readable(text)) for text in texts]

    def _encode_array(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        ids = self._table[codes]
        unknown = np.flatnonzero(ids < 0)
        if not unknown.size:
            return ids.astype(np.uint32)
        spelled = [np.frombuffer(text[place].encode(), dtype=np.uint8) for place in unknown]
        widths = np.ones(len(ids), dtype=np.int64)
        widths[unknown] = [len(spelling) for spelling in spelled]
        wide = np.repeat(ids, widths)
        wide[wide < 0] = np.concatenate(spelled)
        return wide.astype(np.uint32)

    @classmethod
    def load(cls, folder: Path) -> CharTokenizer:
        tokenizer = cls(vocab_size=saved_size(folder))
        tokenizer._restore(folder)
        return tokenizer

    def _learn(self, pieces: list[str] | None) -> None:
        super()._learn(pieces)
        self._table = np.full(CODE_POINTS, -1, dtype=np.int32)  # code point -> id, -1 for what is spelled
        self._table[:128] = np.arange(128)
        for piece, number in self._ids.items():
            self._table[ord(piece)] = number
