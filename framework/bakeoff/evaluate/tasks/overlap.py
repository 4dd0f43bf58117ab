"""What retrieval is worth by how much of a chunk can be copied from the database."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

#: Largest overlaps of the chunks that are told of together (Borgeaud et al., 2022, figure 6).
OVERLAPS = (0.125, 0.25, 0.5, 0.75, 1.0)


class Bucket(NamedTuple):
    """Chunks whose overlap lies above one number, `above`, and not above another, `most`.

    Attributes
    ----------
    chunks : how many. share : of the bytes in all chunks. found, without : bits per byte with and without neighbours.
    """

    above: float
    most: float
    chunks: int
    share: float
    found: float
    without: float


class Chunks(NamedTuple):
    """n chunks: the `overlap` of each, its bits `found` and `without`, and its `size` in bytes; (n,) each."""

    overlap: np.ndarray
    found: np.ndarray
    without: np.ndarray
    size: np.ndarray

    def bucket(self, above: float, most: float) -> Bucket | None:
        """Those in between; None where they hold no byte."""
        of = (self.overlap > above) & (self.overlap <= most)
        size = float(self.size[of].sum())
        if not size:
            return None
        bits = (float(values[of].sum()) / size for values in (self.found, self.without))
        return Bucket(above, most, int(of.sum()), size / float(self.size.sum()), *bits)

    def up_to(self, most: Items[float] = OVERLAPS) -> list[Bucket]:
        """Chunks of at most each overlap, as the paper has it."""
        return [found for end in most if (found := self.bucket(-1.0, end))]

    def between(self, most: Items[float] = OVERLAPS) -> list[Bucket]:
        """Chunks of more than the overlap before and at most each: every chunk once."""
        begins = (-1.0, *most)
        return [found for i, end in enumerate(most) if (found := self.bucket(begins[i], end))]
