"""What a model's answers are like, and what more answers to a question, and a way to choose among them, are worth."""

from bakeoff_align.inference.answers import Answers
from bakeoff_align.inference.best_of_n import BestOfN
from bakeoff_align.inference.step_beam import StepBeam

__all__ = ["Answers", "BestOfN", "StepBeam"]
