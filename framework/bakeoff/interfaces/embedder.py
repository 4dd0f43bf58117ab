"""Kind `embedder`: texts -> vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Items

import numpy as np

from bakeoff.interfaces.component import Component


class Embedder(Component):
    """Texts that mean the like have vectors that lie near each other. Nothing is learnt from what it embeds."""

    kind = "embedder"

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers in a vector."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that decides the vectors: equal fingerprints, equal vectors."""

    @abstractmethod
    def embed(self, texts: Items[str]) -> np.ndarray:
        """(n, `width`) float32, a vector of length 1 for each text, whatever stands beside it; zeros for no text.

        Raises `UserError` where a text is longer than it takes, with both lengths.
        """
