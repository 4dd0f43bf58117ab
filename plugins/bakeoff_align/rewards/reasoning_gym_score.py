"""Reward `reasoning_gym_score`: answers judged by the package that has asked."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import Reward, Sample

from bakeoff_align.corpora import gym
from bakeoff_align.corpora.reasoning_gym import DETAILS, ReasoningGym


class ReasoningGymScore(Reward):
    """What the scorer of a question's own task gives, from 0 to 1; of dialogues of the corpus `reasoning_gym`.

    Needs the extra `reason`. The entry is generated again, as its scorer may need what no file holds; the package is
    run as it is installed.

    Parameters
    ----------
    tag : the answer stands between the last <tag> and </tag>, and is none where they are missing; None: the whole
        text is the answer. White space around it does not count.
    """

    reference = ReasoningGym.reference

    def __init__(self, *, tag: str | None = None):
        gym.required("reward 'reasoning_gym_score'")
        self.tag = tag

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it judges the dialogues of one corpus."""
        return []

    def score(self, samples: Items[Sample]) -> list[float]:
        return [self._score(sample) for sample in samples]

    def answer_of(self, text: str) -> str:
        """What the scorer would be given, letter by letter; "" where there is none."""
        return self._answer(text) or ""

    def _score(self, sample: Sample) -> float:
        told = sample.dialogue.details.get(DETAILS)
        if told is None:
            raise UserError(
                "reward 'reasoning_gym_score' judges what the corpus 'reasoning_gym' asks, and was given another "
                "question: use it with that corpus"
            )
        source = gym.Source(*(told[name] for name in gym.Source._fields))
        entry = gym.entry(source, told["index"])
        if (entry["question"], entry["answer"] or None) != (sample.dialogue.prompt[-1].text, sample.dialogue.answer):
            raise UserError(
                f"question {told['index']} of the task '{source.task}' is not what reasoning-gym {gym.installed()} "
                "generates: install the version that the question was drawn by, or draw it again"
            )
        return float(gym.dataset(source).score_answer(self._answer(sample.text), entry))

    def _answer(self, text: str) -> str | None:
        if self.tag is None:
            return text.strip()
        return gym.tagged(text, self.tag)
