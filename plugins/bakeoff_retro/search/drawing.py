"""Numbers that a seed and a text draw: the same on every machine."""

from __future__ import annotations

import hashlib

import numpy as np


def drawn(seed: int, text: str, count: int, total: int, exclude: np.ndarray) -> list[int]:
    """`count` different numbers below `total`, or all that there are, none of [`exclude[0]`, `exclude[1]`)."""
    first, last = np.clip(exclude, 0, total).tolist()
    left_out = max(0, last - first)
    key = hashlib.blake2b(f"{seed} {text}".encode(errors="surrogatepass"), digest_size=16).digest()
    pool = total - left_out
    moved: dict[int, int] = {}
    numbers = []
    for place in range(min(count, pool)):
        other = place + _hash(key, place) % (pool - place)
        number = moved.get(other, other)
        moved[other] = moved.get(place, place)
        numbers.append(number if number < first else number + left_out)
    return numbers


def _hash(key: bytes, place: int) -> int:
    return int.from_bytes(hashlib.blake2b(place.to_bytes(8, "little"), key=key, digest_size=8).digest(), "little")
