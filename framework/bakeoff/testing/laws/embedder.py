"""Embedders: a vector of length 1 for each text, whatever stands beside it."""

from __future__ import annotations

import numpy as np

from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law

_TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "",
    "a",
    "def answer(n):\n    return n * 42  # forty-two\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "the the the the the the the the the the the the",
    "未知の文字列 ☃ naïve 🤗",
    "The quick brown fox jumps over the lazy dog.",
    "In the beginning was the word, and the word was with the others; " * 3,
]
#: How far a number of a vector may be from another computation's of the same.
_NEAR = 1e-6


@law(None, "vectors", "embedder")
def vectors(candidate: Candidate) -> None:
    """(n, width) float32, of length 1; zeros for no text; none for no texts."""
    embedder = candidate.build()
    found = embedder.embed(_TEXTS)
    _shaped(found, len(_TEXTS), embedder.width)
    _shaped(embedder.embed([]), 0, embedder.width)
    for text, length in zip(_TEXTS, np.sqrt(np.square(found.astype(np.float64)).sum(1)), strict=True):
        if not text and length != 0:
            raise Broken(f"the vector of no text has length {length:.6f}, not 0")
        if text and not abs(length - 1) <= 10 * _NEAR:
            raise Broken(f"the vector of {text[:40]!r} has length {length:.6f}, not 1")


@law(None, "texts apart", "embedder")
def texts_apart(candidate: Candidate) -> None:
    """A text has the same vector alone, among others, and from another object; other texts have others."""
    embedder, again = candidate.build(), candidate.build()
    if not (embedder.fingerprint() and embedder.fingerprint() == again.fingerprint()):
        raise Broken("two objects with the same arguments have different fingerprints, or none")
    together = embedder.embed(_TEXTS)
    for number, text in enumerate(_TEXTS):
        alone = again.embed([text])[0]
        apart = np.abs(alone - together[number]).max()
        if not apart <= _NEAR:
            raise Broken(f"the vector of {text[:40]!r} alone is {apart:.1e} from that among {len(_TEXTS) - 1} others")
    if np.abs(together[0] - together[2]).max() <= _NEAR:
        raise Broken(f"{_TEXTS[0]!r} and {_TEXTS[2]!r} have the same vector")


def _shaped(found: np.ndarray, texts: int, width: int) -> None:
    if found.shape != (texts, width) or found.dtype != np.float32:
        raise Broken(
            f"embed gives {found.dtype} {found.shape} for {texts} texts; it must be float32 ({texts}, {width})"
        )
