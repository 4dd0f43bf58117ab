"""The attention op that suits the sequence."""

from __future__ import annotations

from dataclasses import replace

from bakeoff.interfaces.context import LayerContext
from bakeoff.parts.attention.band import BandOfKeys, block_width, blocks_before
from bakeoff.parts.attention.sdpa import SDPA


class Auto(SDPA):
    """Chooses for each sequence: `banded` where that is less work, else `sdpa`.

    `banded` is taken with a window, causal visibility, an empty past, and a sequence that is longer by 96 than the keys
    of a block, from where on it was measured to be faster, forward and backward: T = 192 for a window of 64.

    Where ranks share out a sequence, the op that the mesh names, such as `ring`, stands in its place.
    """

    capabilities = replace(SDPA.capabilities, context_parallel=True)
    replaceable = True

    #: Keys that a query must be spared for blocks to be worth their making.
    SPARED = 96

    def __init__(self, context: LayerContext):
        super().__init__(context)
        if context.window is not None:
            width = block_width(context.window)
            shortest = (1 + blocks_before(context.window, width)) * width + self.SPARED
            self.keys = {rolling: BandOfKeys(context.window, shortest, rolling) for rolling in (False, True)}
