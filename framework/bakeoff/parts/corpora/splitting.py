"""How documents are dealt out to training and validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import SPLITS
from bakeoff.parts.tokenizers.text import utf8

HASHES = 2**64


def known_split(split: str) -> str:
    """The split's name, if it is one."""
    if split not in SPLITS:
        raise UserError(f"no split is called '{split}'; splits: {', '.join(SPLITS)}")
    return split


def known_share(share: float) -> float:
    """The share of validation, if it can be one."""
    if not 0 <= share < 1:
        raise UserError(f"validation is {share}; it is a share of the text, at least 0 and less than 1")
    return share


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

    With few documents each side still gets one, the nearest. None where all documents are equal: nothing to deal out.
    """
    limit, low, high = int(share * HASHES), HASHES, -1
    for number in hashes:
        low, high = min(low, number), max(high, number)
    if share and low >= high:
        return None
    return HashSplit(seed, min(max(limit, low + 1), high) if share else 0)


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
