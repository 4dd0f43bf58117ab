"""Sample order: a pure function of (seed, epoch, index), whatever the workers, ranks or validation."""

from __future__ import annotations

import numpy as np

ROUNDS = 8
LEAST_HALF = 3  # bits of half a number: below this a Feistel network reaches too few of the permutations
_SPREAD = np.uint64(0xD6E8FEB86659FD93)


def sample_order(numbers: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Which of `size` items each sample is, for sample numbers 0, 1, … counted over all epochs.

    Sample n is item k of epoch e, with e, k = divmod(n, size), under a permutation keyed by (seed, e). The permutation
    is a Feistel network on the smallest even number of bits that holds `size`, walked until it lands below `size`, so
    that nothing is stored and any sample is found at once (Black and Rogaway 2002, Ciphers with arbitrary finite
    domains).
    """
    numbers = np.asarray(numbers, dtype=np.uint64)
    epochs, items = np.divmod(numbers, np.uint64(size))
    half = max(LEAST_HALF, (int(size - 1).bit_length() + 1) // 2)
    keys = _mix(_mix(np.array([seed % 2**64], dtype=np.uint64)) + epochs)
    items = _feistel(items, keys, half)
    outside = np.flatnonzero(items >= size)
    while outside.size:
        items[outside] = _feistel(items[outside], keys[outside], half)
        outside = outside[items[outside] >= size]
    return items.astype(np.int64)


def _feistel(values: np.ndarray, keys: np.ndarray, half: int) -> np.ndarray:
    shift, low = np.uint64(half), np.uint64(2**half - 1)
    left, right = values >> shift, values & low
    for number in range(ROUNDS):
        left, right = right, left ^ (_mix(keys + np.uint64(number) ^ right * _SPREAD) & low)
    return left << shift | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014): every bit of the result hangs on every bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
