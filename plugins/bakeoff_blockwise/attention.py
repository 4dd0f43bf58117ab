"""Attention by blocks of queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Reference
from bakeoff.parts.attention.sdpa import SDPA

from bakeoff_blockwise.tiles import TilesOfKeys


class Blockwise(SDPA):
    """`sdpa` by blocks of `chunk` queries with an online softmax; no tensor holds a number per query and key.

    What no query of a block can see, by causality or by the window, is skipped. Backward computes the softmax anew from
    queries, keys, values, output and log-sum-exp. Where ranks share out rows, the op that the mesh names stands in its
    place.

    Parameters
    ----------
    chunk : queries of a block, and keys of a block where logits or masks are made.

    Raises `UserError` if `chunk` is under 1.
    """

    reference = Reference(
        "Rabe and Staats", 2021, "Self-attention Does Not Need O(n^2) Memory", "https://arxiv.org/abs/2112.05682"
    )
    capabilities = replace(SDPA.capabilities, compile=False, context_parallel=True)
    replaceable = True

    def __init__(self, context: LayerContext, *, chunk: int = 256):
        super().__init__(context)
        if chunk < 1:
            raise UserError(f"attention op 'blockwise': chunk is {chunk}; it must be at least 1")
        self.keys = {rolling: TilesOfKeys(context.window, chunk, rolling) for rolling in self.keys}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Blocks that are shorter than the sequence, and one that is longer."""
        return [{"chunk": 3}, {}]
