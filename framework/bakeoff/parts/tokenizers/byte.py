"""Tokenizer `byte`: one id a byte of UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bakeoff.interfaces import Tokenizer
from bakeoff.parts.files import read_json, write_json
from bakeoff.parts.tokenizers.text import utf8

FILE = "tokenizer.json"


class ByteTokenizer(Tokenizer):
    """Ids 0 to 255 are the bytes of UTF-8; learns nothing and loses nothing."""

    learns = False

    def train(self, texts: Iterable[str]) -> None:
        pass

    @property
    def text_size(self) -> int:
        return 256

    def encode(self, text: str) -> list[int]:
        return list(utf8(text))

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        return [np.frombuffer(utf8(text), dtype=np.uint8) for text in texts]

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, {"tokenizer": "byte"})

    @classmethod
    def load(cls, folder: Path) -> ByteTokenizer:
        read_json(folder / FILE)
        return cls()
