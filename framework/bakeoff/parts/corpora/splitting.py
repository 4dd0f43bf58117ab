"""How documents are dealt out to training and validation."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import SPLITS, Corpus
from bakeoff.parts.tokenizers.text import utf8

HASHES = 2**64


def known_split(split: str) -> str:
    """The split's name, if it is one."""
    if split not in SPLITS:
        raise UserError(f"no split is called '{split}'; splits: {', '.join(SPLITS)}")
    return split


def known_share(validation: float) -> float:
    """The share of validation, if it is one."""
    if not 0 <= validation < 1:
        raise UserError(f"validation is {validation}; it is a share of the text, at least 0 and less than 1")
    return validation


def document_hash(text: str, seed: int) -> int:
    """A number from 0 to 2^64 - 1 that equal texts share."""
    return int.from_bytes(hashlib.blake2b(utf8(text), digest_size=8, key=str(seed).encode()).digest(), "little")


@dataclass(frozen=True)
class HashSplit:
    """Documents whose hash is below `limit` are validation; so equal texts stand on one side, wherever they are."""

    seed: int
    limit: int

    def has(self, split: str, text: str) -> bool:
        """Whether the text belongs to the split."""
        return (document_hash(text, self.seed) < self.limit) == (split == "validation")


def split_by_hash(hashes: Iterable[int], share: float, seed: int) -> HashSplit | None:
    """A split that gives validation about `share` of the documents with these hashes.

    However few documents there are, each side gets one. None where all are equal, so that there is nothing to deal out.
    """
    if not share:
        return HashSplit(seed, 0)
    low, high = HASHES, -1
    for number in hashes:
        low, high = min(low, number), max(high, number)
    return HashSplit(seed, min(max(int(share * HASHES), low + 1), high)) if low < high else None


def cut(text: str, share: float, split: str) -> str:
    """The split's part of a single document: validation is the last `share` of its characters.

    The cut stands behind a line end, else behind a space, else at the very character, whichever is found first in the
    tenth of the text before the place that `share` asks for.
    """
    place = round(len(text) * (1 - share))
    for mark in ("\n", " "):
        found = text.rfind(mark, place - len(text) // 10, place)
        if found >= 0:
            place = found + 1
            break
    return text[:place] if split == "train" else text[place:]


class DealtCorpus(Corpus):
    """Documents dealt out by content: about the share `validation` of them, chosen by a hash of text and `seed`.

    Equal documents stand on one side. However few documents there are, each side gets one; a single document (or
    several that are all equal) is cut in two: the last `validation` of its characters, from a line end on, are held
    out.
    """

    def __init__(self, validation: float, seed: int):
        self.validation, self.seed = known_share(validation), seed

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """All documents, always in the same order."""

    def documents(self, split: str) -> Iterator[str]:
        known_split(split)
        dealt = self._split
        if dealt is None:
            text = next(self.texts(), "")
            yield from filter(None, [cut(text, self.validation, split)])
        else:
            yield from (text for text in self.texts() if dealt.has(split, text))

    @cached_property
    def _split(self) -> HashSplit | None:
        return split_by_hash((document_hash(text, self.seed) for text in self.texts()), self.validation, self.seed)
