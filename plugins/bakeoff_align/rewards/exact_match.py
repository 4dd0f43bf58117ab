"""Reward `exact_match`: the final answer is the right one, letter by letter."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from bakeoff.interfaces import Reward, Sample

from bakeoff_align.rewards.final import MARKERS, check_markers, final_answer, right_answer


class ExactMatch(Reward):
    """1 where the final answer is `dialogue.answer`, else 0; white space around either does not count.

    Parameters
    ----------
    markers : the final answer stands behind the last place of any of them; a text without one is all final answer.
    ignore_case : "Yes" is "yes".
    """

    def __init__(self, *, markers: Items[str] = MARKERS, ignore_case: bool = False):
        check_markers("reward 'exact_match'", markers)
        self.markers, self.ignore_case = tuple(markers), ignore_case

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with every option."""
        return [{}, {"markers": ["answer:"], "ignore_case": True}]

    def score(self, samples: Items[Sample]) -> list[float]:
        return [float(self._matches(sample)) for sample in samples]

    def answer_of(self, text: str) -> str:
        """The final answer in a text, written as it is compared."""
        found = final_answer(text, self.markers)
        return found.casefold() if self.ignore_case else found

    def _matches(self, sample: Sample) -> bool:
        right = right_answer("reward 'exact_match'", sample).strip()
        return self.answer_of(sample.text) == (right.casefold() if self.ignore_case else right)
