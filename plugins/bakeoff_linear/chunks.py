"""Sequences cut into chunks of equal length, and what tokens of a chunk see of each other and of the state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Seen(NamedTuple):
    """Who sees whom, 1 or 0; n chunks of Q tokens.

    `pairs` (Q, Q) or (n, B, 1, Q, Q): a token and another, not later one, of the same document. `entered` and `left`,
    (n, B, 1, Q, 1) or None for all: of the document that the chunk continues; of the one that it ends with. `kept`
    (n, B, 1, 1, 1) or None for all: no document begins in the chunk.
    """

    pairs: Tensor
    entered: Tensor | None
    left: Tensor | None
    kept: Tensor | None


def check_chunk(chunk: int) -> int:
    """`chunk`, or `ValueError` if it is no power of two."""
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f"chunk is {chunk}; it must be a power of two, such as {1 << max(0, chunk.bit_length() - 1)}")
    return chunk


def chunk_length(T: int, chunk: int) -> int:
    """Q, a power of two: `chunk`, or less where fewer tokens are there."""
    return min(chunk, 1 << (T - 1).bit_length())


def by_chunks(t: Tensor, Q: int, heads: int | None = None) -> Tensor:
    """(B, T, H, ...) -> (n, B, H, Q, ...), filled up with zeros; fewer heads are repeated, each in place."""
    padding = -t.shape[1] % Q
    if padding:
        t = F.pad(t, (0, 0) * (t.ndim - 2) + (0, padding))
    if heads is not None and heads != t.shape[2]:
        t = t.repeat_interleave(heads // t.shape[2], 2)
    t = t.unflatten(1, (-1, Q))  # (B, n, Q, H, ...)
    return t.permute(1, 0, 3, 2, *range(4, t.ndim)).contiguous()


def from_chunks(t: Tensor, shape: torch.Size) -> Tensor:
    """(n, B, H, Q, P) -> (B, T, H, P), `shape`."""
    return t.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, : shape[1]]


def seen(segments: Tensor | None, Q: int, like: Tensor) -> Seen:
    """From the running count of documents that began, (B, T)."""
    causal = torch.ones(Q, Q, dtype=like.dtype, device=like.device).tril()
    if segments is None:
        return Seen(causal, None, None, None)
    padding = -segments.shape[1] % Q
    if padding:
        segments = torch.cat([segments, segments[:, -1:].expand(-1, padding)], 1)
    of = segments.unflatten(1, (-1, Q)).transpose(0, 1)[:, :, None]  # (n, B, 1, Q)
    last = of[..., -1:]
    before = F.pad(last[:-1], (0, 0, 0, 0, 0, 0, 1, 0))  # the document that the chunk continues
    pairs = (of[..., :, None] == of[..., None, :]).to(like.dtype) * causal
    entered, left, kept = ((a == b)[..., None].to(like.dtype) for a, b in ((of, before), (of, last), (last, before)))
    return Seen(pairs, entered, left, kept)
