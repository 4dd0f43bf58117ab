"""Scaling at inference: what more answers to a question, and a way to choose among them, are worth."""

from bakeoff_align.inference.best_of_n import BestOfN
from bakeoff_align.inference.step_beam import StepBeam

__all__ = ["BestOfN", "StepBeam"]
