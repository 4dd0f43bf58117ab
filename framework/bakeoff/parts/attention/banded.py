"""Attention whose causal window is banded work."""

from __future__ import annotations

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.parts.attention.band import BandOfKeys
from bakeoff.parts.attention.sdpa import SDPA


class Banded(SDPA):
    """A window costs T window instead of T^2: blocks of queries over the few blocks of keys that they can see.

    Where the past is not empty, or visibility is other than causal, keys are masked, as `sdpa` does.

    Raises `UserError` if the mixer has no window.
    """

    reference = Reference(
        "Beltagy, Peters and Cohan", 2020, "Longformer: The Long-Document Transformer", "https://arxiv.org/abs/2004.05150"
    )  # fmt: skip

    def __init__(self, context: LayerContext):
        super().__init__(context)
        if context.window is None:
            raise UserError("attention op 'banded' needs a window: give the mixer one, or use op 'sdpa' or 'auto'")
        self.keys = {rolling: BandOfKeys(context.window, shortest=2, rolling=rolling) for rolling in (False, True)}
