"""The attention op that suits the sequence."""

from __future__ import annotations

from bakeoff.interfaces.context import LayerContext
from bakeoff.parts.attention.band import BandOfKeys, block_width
from bakeoff.parts.attention.sdpa import SDPA


class Auto(SDPA):
    """Chooses for each sequence: `banded` where that is less work, else `sdpa`.

    `banded` is taken with a window, causal visibility, an empty past, and at least four blocks of queries, that is
    from T = max(128, 2 window) on, where it was measured to be faster, forward and backward.
    """

    def __init__(self, context: LayerContext):
        super().__init__(context)
        if context.window is not None:
            shortest = 4 * block_width(context.window)
            self.keys = {rolling: BandOfKeys(context.window, shortest, rolling) for rolling in (False, True)}
