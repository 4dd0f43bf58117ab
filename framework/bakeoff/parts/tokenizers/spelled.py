"""What `char` and `word` share: a vocabulary of pieces of text, and bytes for what it lacks."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from bakeoff.errors import UserError
from bakeoff.interfaces import Tokenizer
from bakeoff.interfaces.tokenizer import RESERVED
from bakeoff.parts.files import read_json, write_json
from bakeoff.parts.tokenizers.text import utf8

FILE = "tokenizer.json"
BYTES = 256


class SpelledTokenizer(Tokenizer):
    """Ids 0 to 255 are single bytes; then one id a piece that was learnt, the most frequent first.

    A piece that is one byte long is that byte. What was not learnt is spelled in bytes, so that nothing is lost. Until
    it is trained it has the size that is asked for, if one is, and spells all text in bytes.
    """

    name: ClassVar[str]

    def __init__(self, vocab_size: int | None):
        least = BYTES + len(RESERVED)
        if vocab_size is not None and vocab_size < least:
            raise UserError(
                f"tokenizer '{self.name}': vocab_size is {vocab_size}; it counts the {BYTES} bytes and "
                f"{len(RESERVED)} reserved ids too, so it must be at least {least}"
            )
        self._limit = vocab_size
        self._learn(None)

    @abstractmethod
    def pieces(self, text: str) -> Iterable[str]:
        """The text cut into pieces; joined they are the text."""

    def train(self, texts: Iterable[str]) -> None:
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(self.pieces(text))
        candidates = [piece for piece in counts if len(utf8(piece)) > 1]
        candidates.sort(key=lambda piece: (-counts[piece], piece))
        self._learn(candidates if self._limit is None else candidates[: self._limit - BYTES - len(RESERVED)])

    @property
    def text_size(self) -> int:
        if self._pieces is None and self._limit is not None:
            return self._limit - len(RESERVED)
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self.pieces(text):
            found = self._ids.get(piece)
            if found is None:
                ids.extend(utf8(piece))
            else:
                ids.append(found)
        return ids

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token] if token < len(self._bytes) else b""

    def save(self, folder: Path) -> None:
        content = {"tokenizer": self.name, "vocab_size": self._limit, "pieces": self._pieces}
        write_json(folder / FILE, content)

    def _restore(self, folder: Path) -> None:
        self._learn(read_json(folder / FILE)["pieces"])

    def _learn(self, pieces: list[str] | None) -> None:
        self._pieces = pieces
        pieces = pieces or []
        self._ids = {piece: BYTES + number for number, piece in enumerate(pieces)}
        self._bytes = [bytes([byte]) for byte in range(BYTES)] + [utf8(piece) for piece in pieces]


def saved_size(folder: Path) -> int | None:
    """The `vocab_size` argument of the tokenizer saved there."""
    return read_json(folder / FILE)["vocab_size"]
