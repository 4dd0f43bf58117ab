"""Random choices."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence as Items
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Choices that are the same in every version of Python, and others for every seed and purpose."""

    def __init__(self, seed: int, purpose: str):
        digest = hashlib.blake2b(f"{seed}:{purpose}".encode(), digest_size=8).digest()
        self.random = random.Random(int.from_bytes(digest, "little")).random

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1."""
        return int(self.random() * n)

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + self.below(high - low + 1)

    def one(self, items: Items[T]) -> T:
        return items[self.below(len(items))]

    def digits(self, length: int) -> str:
        """A number of so many digits, of which the first is no zero unless it stands alone."""
        first = self.between(0 if length == 1 else 1, 9)
        return str(first) + "".join(str(self.below(10)) for _ in range(length - 1))
