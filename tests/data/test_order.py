from collections import Counter
from itertools import permutations
from math import factorial

import numpy as np
import pytest
from bakeoff.data.order import sample_order


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 1000, 4097])
def test_each_epoch_shows_each_item_once(size: int) -> None:
    epochs = sample_order(np.arange(3 * size), size, seed=5).reshape(3, size)
    assert (np.sort(epochs) == np.arange(size)).all()


def test_any_sample_is_found_alone_and_far_away() -> None:
    whole = sample_order(np.arange(100, 400), 37, seed=1)
    assert [int(sample_order(np.array([n]), 37, seed=1)[0]) for n in range(100, 400)] == whole.tolist()
    far = sample_order(np.arange(10**15, 10**15 + 5), 10**12 + 39, seed=1)
    assert len({*far.tolist()}) == 5
    assert ((far >= 0) & (far < 10**12 + 39)).all()


def test_epochs_and_seeds_differ_and_no_pair_of_them_coincides() -> None:
    orders = {
        tuple(sample_order(np.arange(epoch * 20, epoch * 20 + 20), 20, seed=seed))
        for seed in range(-3, 12)
        for epoch in range(12)
    }
    assert len(orders) == 15 * 12


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_are_equally_likely(size: int) -> None:
    epochs = factorial(size) * 200
    orders = sample_order(np.arange(epochs * size), size, seed=0).reshape(epochs, size)
    counts = Counter(map(tuple, orders.tolist()))
    expected = epochs / factorial(size)
    squares = sum((counts[order] - expected) ** 2 / expected for order in permutations(range(size)))
    freedom = factorial(size) - 1
    assert squares < freedom + 4 * np.sqrt(2 * freedom) + 8


def test_places_and_neighbours_are_uniform() -> None:
    size, epochs = 1000, 200
    orders = sample_order(np.arange(size * epochs), size, seed=3).reshape(epochs, size)
    for left, right in [(orders, np.tile(np.arange(size), (epochs, 1))), (orders[:, 1:], orders[:, :-1])]:
        counts = np.histogram2d(left.ravel(), right.ravel(), bins=20)[0]
        squares = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert abs(squares - 400) < 5 * np.sqrt(2 * 400)


def mixed(value: int) -> int:
    """SplitMix64, as published: one step of the counter and the finaliser."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def plain_order(number: int, size: int, seed: int) -> int:
    """One sample in plain integers; runs resume by this order, so that it may not change."""
    epoch, item = divmod(number, size)
    half = max(3, -(-(size - 1).bit_length() // 2))
    key = mixed((mixed(seed % 2**64) + epoch) % 2**64)
    while True:
        left, right = item >> half, item % 2**half
        for turn in range(8):
            spread = right * 0xD6E8FEB86659FD93 % 2**64
            left, right = right, left ^ mixed((key + turn) % 2**64 ^ spread) % 2**half
        item = left << half | right
        if item < size:
            return item


@pytest.mark.parametrize("size", [1, 10, 100, 5000, 10**9])
def test_the_order_is_that_of_plain_integers(size: int) -> None:
    numbers = np.arange(3 * min(size, 50))
    for seed in (0, -1, 2**70):
        assert sample_order(numbers, size, seed).tolist() == [plain_order(n, size, seed) for n in numbers.tolist()]


def test_the_mixing_function_is_that_of_the_paper() -> None:
    # the first outputs of Java's SplittableRandom, and of splitmix64.c, for seed 1234567
    state, found = 1234567, []
    for _ in range(3):
        found.append(mixed(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]
