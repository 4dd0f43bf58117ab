"""Attention by blocks, and a block whose mixer and feed-forward run chunk by chunk."""

from bakeoff_blockwise.attention import Blockwise
from bakeoff_blockwise.transformer import BlockwiseTransformer

BAKEOFF_API = 1

__all__ = ["Blockwise", "BlockwiseTransformer"]
