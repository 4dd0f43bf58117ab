"""Reward `format_reward`: an answer has the form that was asked for."""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import permutations
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import Reward, Sample


class FormatReward(Reward):
    """1 where each marker stands in the text exactly once, in their order, else 0.

    Parameters
    ----------
    markers : texts, such as ["<scratch>", "</scratch>"]; what stands between them is free.
    at_start : the text begins with the first of them; white space before it does not count.
    at_end : the text ends with the last of them; white space behind it does not count.
    """

    def __init__(self, *, markers: Items[str], at_start: bool = False, at_end: bool = False):
        if not markers or "" in markers:
            raise UserError(f"reward 'format_reward': markers is {list(markers)}; it takes texts, and at least one")
        for one, other in permutations(markers, 2):
            if one in other:
                raise UserError(
                    f"reward 'format_reward': marker {other!r} holds marker {one!r}, and each must stand once in "
                    "a text: none would have this form"
                )
        self.markers, self.at_start, self.at_end = tuple(markers), at_start, at_end

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Anywhere, and from one end to the other."""
        return [
            {"markers": ["<scratch>", "</scratch>"]},
            {"markers": ["<think>", "</think>", "<answer>", "</answer>"], "at_start": True, "at_end": True},
        ]

    def score(self, samples: Items[Sample]) -> list[float]:
        return [float(self._has_form(sample.text.strip())) for sample in samples]

    def _has_form(self, text: str) -> bool:
        behind = 0
        for marker in self.markers:
            at = text.find(marker)
            if at < behind or text.find(marker, at + 1) >= 0:
                return False
            behind = at + len(marker)
        starts = not self.at_start or text.startswith(self.markers[0])
        return starts and (not self.at_end or behind == len(text))
