"""Measures of a trained model: how good, how fast, how large, and what it can do."""

from bakeoff.evaluate.asking import Asked, asked, measure
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.measures import MEASURES

__all__ = ["MEASURES", "Asked", "Measured", "asked", "measure"]
