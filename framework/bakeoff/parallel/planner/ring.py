"""Attention over a ring of ranks: how long a rank's block must be for the work on it to hide its sending.

Liu et al. (2023), "Ring Attention with Blockwise Transformers for Near-Infinite Context", arXiv:2310.01889.
"""

from __future__ import annotations

#: Blocks of the smallest size that a rank holds at once: queries, keys, values, an output, and two under way.
BLOCKS = 6


def smallest_block(flops: float, bandwidth: float, kv_share: float = 1.0) -> float:
    """Tokens of a block: section 3, `4 d c^2 / F >= 4 c d / B`, so `c >= F / B`.

    `kv_share` is how many key-value heads a query head has: with n_kv of n, `c >= (F / B) n_kv / n`.
    """
    return flops / bandwidth * kv_share


def smallest_sequence(flops: float, bandwidth: float, kv_share: float = 1.0) -> float:
    """Tokens of a rank: `s >= 6 c`, table 2."""
    return BLOCKS * smallest_block(flops, bandwidth, kv_share)


def forward_bytes(ranks: int, rows: int, block: int, kv_width: int, element: int = 2) -> int:
    """Bytes that a rank sends in the forward of one layer: keys and values, `ranks - 1` times."""
    return 2 * (ranks - 1) * rows * block * kv_width * element


def backward_bytes(ranks: int, rows: int, block: int, kv_width: int, element: int = 2) -> int:
    """Bytes that a rank sends in the backward of one layer: the same again, and the gradients of both in float32."""
    return 2 * (ranks - 1) * rows * block * kv_width * (element + max(element, 4))


def longest_context(blockwise: float, ranks: int) -> float:
    """Tokens that fit a ring where `blockwise` fit one device (table 3): each rank holds as many."""
    return blockwise * ranks
