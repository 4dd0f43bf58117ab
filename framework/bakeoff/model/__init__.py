"""Assembly: a backbone and a head, their initialisation, generation and cost."""

from bakeoff.model.language_model import LanguageModel

__all__ = ["LanguageModel"]
