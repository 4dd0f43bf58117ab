"""Reward `process_reward`: how right each step of an answer is."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Reference, Reward, Sample
from torch import Tensor

from bakeoff_align.rewards.scored_run import ScoredRun
from bakeoff_align.steps import cut, ends_of

#: Logarithms (n,) of the probabilities that the steps are right -> that of the whole.
AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda logs: logs.sum(),
    "minimum": lambda logs: logs.min(),
    "last": lambda logs: logs[-1],
}


class ProcessReward(Reward):
    """What the probabilities `sigma(score)` at the last tokens of the steps come to, by a run trained with `process`.

    An answer without any step, that is, without text, gets 0.

    Parameters
    ----------
    run : the folder of the run, whose head scores.
    separator : where steps end; it belongs to the step before it.
    aggregate : "product" of all, the "minimum", or the "last".
    device : where its model computes; None: on a GPU if there is one.
    batch_tokens : about so many tokens are read at once.
    """

    reference = Reference("Lightman et al.", 2023, "Let's Verify Step by Step", "https://arxiv.org/abs/2305.20050")

    def __init__(
        self,
        *,
        run: str,
        separator: str = "\n",
        aggregate: str = "product",
        device: str | None = None,
        batch_tokens: int = 16384,
    ):
        if not separator:
            raise UserError("reward 'process_reward': separator is empty; it is the text at which steps end")
        if aggregate not in AGGREGATES:
            raise UserError(
                f"reward 'process_reward': aggregate is '{aggregate}'; it is one of {', '.join(AGGREGATES)}"
            )
        self.separator, self.aggregate = separator, aggregate
        self.judge = ScoredRun(run, device=device, batch_tokens=batch_tokens)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it needs a run."""
        return []

    def score(self, samples: Items[Sample]) -> list[float]:
        return [aggregated(logs, self.aggregate) for logs in self._logs(samples)]

    def score_steps(self, samples: Items[Sample]) -> list[list[float]]:
        return [logs.exp().tolist() for logs in self._logs(samples)]

    def _logs(self, samples: Items[Sample]) -> list[Tensor]:
        found = []
        for sample, scored in zip(samples, self.judge.scored(samples), strict=True):
            steps = cut(sample.text, self.separator)
            _, ends = ends_of(sample.text, steps, self.judge.template, self.judge.tokenizer)
            found.append(torch.nn.functional.logsigmoid(scored.scores[ends]))
        return found


def aggregated(logs: Tensor, aggregate: str) -> float:
    """The probability that an answer is right, of the logarithms (n,) of its steps'; 0 where there are none."""
    return math.exp(float(AGGREGATES[aggregate](logs))) if len(logs) else 0.0
