"""Text out of ids that come one by one."""

from __future__ import annotations

import codecs

from bakeoff.interfaces import Tokenizer


class StreamDecoder:
    """Pieces of text that never end inside a character; joined, they are `decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """What the next id completes; "" while a character is still open."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What is left at the end: a replacement character for one that stayed open."""
        return self._decoder.decode(b"", final=True)
