"""Text to batches: token store, packing, sample order."""

from bakeoff.data.data import Data
from bakeoff.data.store import TokenStore

__all__ = ["Data", "TokenStore"]
