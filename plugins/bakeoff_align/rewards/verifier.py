"""Reward `verifier`: how probable it is that an answer is right."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import Reference, Reward, Sample

from bakeoff_align.rewards.scored_run import ScoredRun

#: Of which tokens of the answer.
OVER = ("last", "mean")


class Verifier(Reward):
    """`sigma(score)`, by a run that was trained with `verifying`.

    Parameters
    ----------
    run : the folder of the run, whose head scores.
    over : "last": what the probability is once the answer has ended; "mean": on average over its tokens, for a verifier
        that was trained to judge at each token.
    device : where its model computes; None: on a GPU if there is one.
    batch_tokens : about so many tokens are read at once.
    """

    reference = Reference(
        "Cobbe et al.", 2021, "Training Verifiers to Solve Math Word Problems", "https://arxiv.org/abs/2110.14168"
    )

    def __init__(self, *, run: str, over: str = "last", device: str | None = None, batch_tokens: int = 16384):
        if over not in OVER:
            raise UserError(f"reward 'verifier': over is '{over}'; it is one of {', '.join(OVER)}")
        self.over = over
        self.judge = ScoredRun(run, device=device, batch_tokens=batch_tokens)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it needs a run."""
        return []

    def score(self, samples: Items[Sample]) -> list[float]:
        found = [scored.scores.sigmoid() for scored in self.judge.scored(samples)]
        return [float(each[-1] if self.over == "last" else each.mean()) for each in found]
