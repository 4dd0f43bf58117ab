"""Embedder `static`: hashed words and pieces of words; no weights, no package."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import numpy as np
from bakeoff.interfaces import Embedder, Reference
from bakeoff.parts.files import seal

#: Characters of a piece.
PIECES = (3, 4, 5)
#: Texts that are embedded at once; with a term's hash, a text's number makes one word of 64 bits.
BATCH = 256
_HASH_BITS = np.uint64(56)
_HASH = np.uint64((1 << 56) - 1)
#: Number of the way in which vectors are made: another way, another number.
VERSION = 1

_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s+")


class _Terms(NamedTuple):
    """Terms as they stand in texts: the text's number, and a hash."""

    texts: np.ndarray
    hashes: np.ndarray


class Static(Embedder):
    """Texts that share words, pairs of words, and pieces of 3 to 5 bytes lie near each other; meaning is not looked at.

    A text is taken in lower case, with single spaces. Each distinct term has the weight 1 + ln(its count) and is added,
    with a sign, to one of `width` numbers, sign and place by a hash of the term; then the length is made 1.

    Parameters
    ----------
    width : numbers in a vector: the more, the fewer terms share one.
    """

    reference = Reference(
        "Weinberger, K. et al.",
        2009,
        "Feature Hashing for Large Scale Multitask Learning",
        "https://arxiv.org/abs/0902.2206",
    )

    def __init__(self, *, width: int = 256):
        if width < 1:
            raise ValueError(f"width is {width}; a vector holds at least 1 number")
        self._width = width

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Default width, and one that is no power of two."""
        return [{}, {"width": 100}]

    @property
    def width(self) -> int:
        return self._width

    def fingerprint(self) -> str:
        return seal(["static", VERSION, self._width])

    def embed(self, texts: Items[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self._width), np.float32)
        for at in range(0, len(texts), BATCH):
            vectors[at : at + BATCH] = self._batch(texts[at : at + BATCH])
        return vectors

    def _batch(self, texts: Items[str]) -> np.ndarray:
        plain = [_SPACE.sub(" ", text).strip().lower() for text in texts]
        terms = [_words(plain), *_pieces(plain)]
        texts_of, hashes = (np.concatenate(column) for column in zip(*terms, strict=True))
        terms_of = np.sort((texts_of.astype(np.uint64) << _HASH_BITS) | (hashes >> (np.uint64(64) - _HASH_BITS)))
        at = np.flatnonzero(np.diff(terms_of, prepend=~terms_of[:1]))
        weights = 1 + np.log(np.diff(at, append=len(terms_of)))
        distinct = terms_of[at]
        weights[distinct & np.uint64(1) == 1] *= -1
        hashes = (distinct & _HASH) >> np.uint64(1)
        places = (distinct >> _HASH_BITS) * np.uint64(self._width) + hashes % np.uint64(self._width)
        sums = np.bincount(places.astype(np.int64), weights, len(texts) * self._width).reshape(-1, self._width)
        return sums / np.maximum(np.sqrt(np.square(sums).sum(1, keepdims=True)), np.finfo(np.float32).tiny)


def _words(texts: Items[str]) -> _Terms:
    """Words and pairs of words that stand side by side."""
    found = [_WORD.findall(text) for text in texts]
    texts_of = np.repeat(np.arange(len(texts)), [len(words) for words in found])
    codes = np.array([zlib.crc32(word.encode()) for words in found for word in words], np.uint64)
    hashes = _mixed(codes + np.uint64(1 << 32))
    beside = texts_of[1:] == texts_of[:-1]
    pairs = _mixed(hashes[:-1] * np.uint64(3) + hashes[1:])[beside]
    return _Terms(np.concatenate([texts_of, texts_of[1:][beside]]), np.concatenate([hashes, pairs]))


def _pieces(texts: Items[str]) -> list[_Terms]:
    """Runs of so many bytes, spaces among them, of each size."""
    encoded = [text.encode(errors="surrogatepass") for text in texts]
    texts_of = np.repeat(np.arange(len(texts)), [len(text) for text in encoded])
    values = np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint64)
    found = []
    for size in PIECES:
        count = max(0, len(values) - size + 1)
        codes = np.full(count, size, np.uint64)
        for place in range(size):
            codes = (codes << np.uint64(8)) | values[place : place + count]
        within = texts_of[:count] == texts_of[size - 1 :] if count else np.zeros(0, bool)
        found.append(_Terms(texts_of[:count][within], _mixed(codes[within])))
    return found


def _mixed(codes: np.ndarray) -> np.ndarray:
    """Codes whose bits are stirred one to one, so that any few of them are as good as random (SplitMix64)."""
    codes = codes + np.uint64(0x9E3779B97F4A7C15)
    codes = (codes ^ (codes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    codes = (codes ^ (codes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return codes ^ (codes >> np.uint64(31))
