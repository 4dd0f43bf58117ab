"""Reward `learned_reward`: what a reward model thinks of an answer."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from bakeoff.interfaces import Reference, Reward, Sample

from bakeoff_align.rewards.scored_run import ScoredRun


class LearnedReward(Reward):
    """The score at the last token of an answer, by a run that was trained with `bradley_terry`.

    Parameters
    ----------
    run : the folder of the run, whose head scores.
    device : where its model computes; None: on a GPU if there is one.
    batch_tokens : about so many tokens are read at once.
    """

    reference = Reference(
        "Ouyang et al.",
        2022,
        "Training Language Models to Follow Instructions with Human Feedback",
        "https://arxiv.org/abs/2203.02155",
    )

    def __init__(self, *, run: str, device: str | None = None, batch_tokens: int = 16384):
        self.judge = ScoredRun(run, device=device, batch_tokens=batch_tokens)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it needs a run."""
        return []

    def score(self, samples: Items[Sample]) -> list[float]:
        return [float(scored.scores[-1]) for scored in self.judge.scored(samples)]
