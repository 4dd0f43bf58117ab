"""Tokenizer `word`: one id a frequent word of the training text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bakeoff.parts.tokenizers.spelled import SpelledTokenizer, saved_size
from bakeoff.parts.tokenizers.text import readable

PIECES = re.compile(r" ?\w+| ?[^\w\s]|\s+(?!\S)|\s+")


class WordTokenizer(SpelledTokenizer):
    """One id a word; words that the vocabulary lacks are spelled in the bytes of UTF-8, so that nothing is lost.

    A word is a run of letters, digits and underscores, or a single other character that is no white space, each with
    the one space before it, if there is one; what white space is left between words is a word too, up to its last
    character where a word follows that cannot take it.

    Parameters
    ----------
    vocab_size : at most so many ids, the 256 bytes and the reserved ids included. The most frequent words are kept; of
        equally frequent ones, the first in the order of code points.
    """

    name = "word"

    def __init__(self, *, vocab_size: int):
        super().__init__(vocab_size)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """So few words that some are spelled, and room for all."""
        return [{"vocab_size": 280}, {"vocab_size": 2000}]

    def pieces(self, text: str) -> Iterable[str]:
        return PIECES.findall(readable(text))

    @classmethod
    def load(cls, folder: Path) -> WordTokenizer:
        size = saved_size(folder)
        assert size is not None
        tokenizer = cls(vocab_size=size)
        tokenizer._restore(folder)
        return tokenizer
