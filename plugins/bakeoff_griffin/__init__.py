"""Gated linear recurrences beside local attention."""

from bakeoff_griffin.rg_lru import RGLRU

BAKEOFF_API = 1

__all__ = ["RGLRU"]
