"""Measures of a trained model: how good, how fast, how large."""

from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.measures import MEASURES, known_measures, measure

__all__ = ["MEASURES", "Measured", "known_measures", "measure"]
