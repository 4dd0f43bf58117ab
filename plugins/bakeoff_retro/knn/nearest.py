"""The nearest of many vectors, by comparison with every one of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

#: Queries and keys that are compared at once: 64 MiB of scores in float32.
QUERIES, KEYS = 256, 65536


class Nearest(NamedTuple):
    """For each of N queries, nearest first: `distances` (N, k), squared L2, and `numbers` (N, k) long of the keys."""

    distances: Tensor
    numbers: Tensor


def nearest(queries: Tensor, keys: Tensor, k: int) -> Nearest:
    """The `k` of `keys` (n, D) that are nearest to each of `queries` (N, D), in the queries' type, on their device.

    Distances are `|q|^2 - 2 q.k + |k|^2`: what is near is off by some eps times `|q|^2`.
    """
    with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
        found: list[Nearest | None] = [None] * -(-len(queries) // QUERIES)
        for start in range(0, len(keys), KEYS):
            block = keys[start : start + KEYS].to(queries)
            for number, piece in enumerate(queries.split(QUERIES)):
                found[number] = _nearer(found[number], _within(piece, block, start, k), k)
        parts = [part for part in found if part is not None]
        relative, numbers = (torch.cat(column) for column in zip(*parts, strict=True))
        squares = queries.square().sum(-1, keepdim=True)
        return Nearest((relative + squares).clamp(min=0), numbers)


def _within(queries: Tensor, block: Tensor, start: int, k: int) -> Nearest:
    """The nearest of one block, by their distances less `|q|^2`."""
    scores = torch.addmm(block.square().sum(-1), queries, block.T, alpha=-2)
    distances, places = scores.topk(min(k, len(block)), largest=False)
    return Nearest(distances, places + start)


def _nearer(before: Nearest | None, more: Nearest, k: int) -> Nearest:
    if before is None:
        return more
    distances = torch.cat([before.distances, more.distances], 1)
    kept, places = distances.topk(min(k, distances.shape[1]), largest=False)
    return Nearest(kept, torch.cat([before.numbers, more.numbers], 1).gather(1, places))
