"""What n answers to a question are worth, told from a pool of more: expectations over which n of the pool are drawn.

Each of them is unbiased for n answers drawn anew, because which n of the pool were drawn first says nothing. Where
several answers stand equal, each is taken to be chosen as often as the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as Items

import numpy as np

#: All choices of n are gone through where there are at most so many; else so many of them are drawn.
EXACT, DRAWN = 20_000, 1000
#: Sums of weights that differ by less, relative to the larger, are equal.
EQUAL = 1e-9


def pass_at_k(n: int, right: int, k: int) -> float:
    """Probability that one of k answers at least is right, of n of which `right` are: 1 - C(n - right, k) / C(n, k).

    Chen et al. (2021), Evaluating Large Language Models Trained on Code, https://arxiv.org/abs/2107.03374. Raises
    `ValueError` unless 1 <= k <= n and 0 <= right <= n.
    """
    if not (1 <= k <= n and 0 <= right <= n):
        raise ValueError(f"pass_at_k takes 1 <= k <= n and 0 <= right <= n, not n {n}, right {right}, k {k}")
    if n - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - right + 1, n + 1))


def best_of(scores: Items[float], right: Items[float], n: int) -> float:
    """How right the highest scored of n answers is on average: `right` of each in the pool from 0 to 1.

    Raises `ValueError` unless 1 <= n <= the size of the pool, and both have one number an answer.
    """
    pool = len(scores)
    if not 1 <= n <= pool or len(right) != pool:
        raise ValueError(f"best_of takes 1 <= n <= {pool} scores and as many of right, not n {n} and {len(right)}")
    _, group, size = np.unique(np.asarray(scores, float), return_inverse=True, return_counts=True)
    worth = np.bincount(group, weights=np.asarray(right, float)) / size
    upto = np.cumsum(size).tolist()
    # the best is in a group if all n are in it or below, but not all below
    ways = [math.comb(end, n) - math.comb(end - own, n) for end, own in zip(upto, size.tolist(), strict=True)]
    return math.fsum(way / math.comb(pool, n) * value for way, value in zip(ways, worth.tolist(), strict=True))


def choices(pool: int, n: int, seed: int) -> np.ndarray:
    """(S, pool), 1 where an answer is among the n of a choice, else 0: every choice, or a thousand drawn ones."""
    if math.comb(pool, n) <= EXACT:
        chosen = np.array(list(itertools.combinations(range(pool), n)))
    else:
        chosen = np.random.default_rng(seed).random((DRAWN, pool)).argsort(1)[:, :n]
    among = np.zeros((len(chosen), pool))
    np.put_along_axis(among, chosen, 1.0, 1)
    return among


def voted(answers: Items[str], weights: Items[float], right: Items[float], among: np.ndarray) -> float:
    """How right the answer is that gets the most weight, on average over `choices`.

    Equal texts are one answer, which is as right as those who gave it are on average; "" is none, and has no vote. A
    choice without a vote is wrong.
    """
    names = list(dict.fromkeys(answer for answer in answers if answer))
    if not names:
        return 0.0
    gave = np.array([[answer == name for name in names] for answer in answers], float)
    worth = np.asarray(right, float) @ gave / gave.sum(0)
    present = among @ gave > 0
    totals = np.where(present, among @ (gave * np.asarray(weights, float)[:, None]), -np.inf)
    most = totals.max(1, keepdims=True)
    first = present & (totals >= most - EQUAL * abs(most))
    return float((first @ worth / np.maximum(first.sum(1), 1)).mean())


def budgets(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return sorted({2**i for i in range(most.bit_length())} | {most})
