"""Attention over ranks that share out the tokens of a sequence: by a ring, and by an exchange of tokens for heads."""

from bakeoff_ring.ring import Ring
from bakeoff_ring.ulysses import Ulysses

BAKEOFF_API = 1

__all__ = ["Ring", "Ulysses"]
