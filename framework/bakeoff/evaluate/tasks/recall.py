"""Examples of multi-query associative recall."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bakeoff.parts.counts import check_counts

#: Gaps before queries follow a power law whose density is POWER j^(POWER - 1): short ones are likelier.
POWER = 0.01


class Recall(NamedTuple):
    """`tokens` (n, T) long; where the queries stand in them, `queries` (n, pairs); and what each of them asks for,
    `answers` (n, pairs)."""

    tokens: Tensor
    queries: Tensor
    answers: Tensor


def check_sizes(*, pairs: int, length: int, vocabulary: int) -> None:
    """Raise `ValueError` where no such example exists."""
    check_counts(pairs=pairs)
    if length % 2:
        raise ValueError(f"length is {length}; it must be even, since keys stand at even places")
    if 4 * pairs > length:
        raise ValueError(f"length is {length}; {pairs} pairs and their queries take at least {4 * pairs}")
    if pairs > vocabulary // 2 - 1:
        raise ValueError(f"vocabulary is {vocabulary}; {pairs} different keys take at least {2 * pairs + 2}")


def draw(n: int, *, pairs: int, length: int, vocabulary: int, generator: torch.Generator) -> Recall:
    """`n` examples (Arora et al., 2023, arXiv:2312.04927, in the form of their figure 2).

    Keys are drawn from 1 to V/2 - 1 and values from V/2 to V - 1, in each example without replacement; gaps by the
    power law, without replacement either.
    """
    check_sizes(pairs=pairs, length=length, vocabulary=vocabulary)
    half, room = vocabulary // 2, (length - 2 * pairs) // 2
    keys = 1 + _distinct(torch.ones(half - 1), n, pairs, generator)
    values = half + _distinct(torch.ones(vocabulary - half), n, pairs, generator)
    gaps = _distinct(torch.arange(1, room + 1) ** (POWER - 1), n, pairs, generator)
    return place(keys, values, gaps, length)


def place(keys: Tensor, values: Tensor, gaps: Tensor, length: int) -> Recall:
    """Pairs of key and value one after the other, then each key once more, as a query, `2 gap` tokens behind them.

    All are (n, pairs). What stands between queries is 0. The model reads a query and shall answer with its value; with
    keys 2 and 4, values 8 and 7, gaps 4 and 1 and a length of 16:

        tokens   2  8  4  7  0  0  4  0  0  0  0  0  2  0  0  0
        answers                    7                 8
    """
    n, pairs = keys.shape
    tokens = torch.zeros(n, length, dtype=torch.long)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    queries = 2 * pairs + 2 * gaps
    return Recall(tokens.scatter(1, queries, keys), queries, values)


def hidden(
    n: int,
    *,
    pairs: int,
    length: int,
    vocabulary: int,
    filler: int,
    depth: float | None = None,
    generator: torch.Generator,
) -> Recall:
    """`n` examples of pairs that stand anywhere in a haystack of other tokens, and are all asked for at its end.

    The haystack, of `length` - 2 `pairs` tokens, is made of slots of two, one for each pair and the others filled with
    ids from `vocabulary` to `vocabulary` + `filler` - 1; keys and values are drawn as in `draw`. Behind it stand the
    keys again, in another order, each before a 0. The first query is of the pair that stands `depth` percent of the
    slots from the beginning, to the nearest, where a depth is given.
    """
    check_sizes(pairs=pairs, length=length, vocabulary=vocabulary)
    half, slots = vocabulary // 2, (length - 2 * pairs) // 2
    keys = 1 + _distinct(torch.ones(half - 1), n, pairs, generator)
    values = half + _distinct(torch.ones(vocabulary - half), n, pairs, generator)
    places = _distinct(torch.ones(slots), n, pairs, generator)
    if depth is not None:
        first = torch.full((n, 1), round(depth / 100 * (slots - 1)))
        rest = _distinct(torch.ones(slots - 1), n, pairs - 1, generator)
        places = torch.cat([first, rest + (rest >= first)], 1)
    tokens = torch.zeros(n, length, dtype=torch.long)
    tokens[:, : 2 * slots] = torch.randint(vocabulary, vocabulary + filler, (n, 2 * slots), generator=generator)
    tokens = tokens.scatter(1, 2 * places, keys).scatter(1, 2 * places + 1, values)
    queries = 2 * slots + 2 * _distinct(torch.ones(pairs), n, pairs, generator)
    return Recall(tokens.scatter(1, queries, keys), queries, values)


def _distinct(weights: Tensor, n: int, count: int, generator: torch.Generator) -> Tensor:
    """(n, count) long: in each row `count` different indices, drawn one after the other by weight.

    The order in which exponential clocks of these rates ring (Efraimidis and Spirakis, 2006).
    """
    clocks = torch.empty(n, len(weights), dtype=torch.float64).exponential_(generator=generator) / weights
    return clocks.topk(count, largest=False).indices
