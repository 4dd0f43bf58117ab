"""Expert iteration: the model is trained on those of its own answers that are right."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.objective import Model, Statistics, Terms
from bakeoff.interfaces.reward import Reward
from torch import Tensor

from bakeoff_align.log_probabilities import mean, of_layers, told
from bakeoff_align.objectives.policy.answering import Answering, of_answers, present
from bakeoff_align.objectives.policy.answers import Rows

logger = logging.getLogger(__name__)


class ExpertIteration(Answering):
    """Of the answers to a prompt, those that are right, each once, are targets; the loss is the mean over their tokens.

    A collection in which none is right changes nothing by itself: its loss has the weight 0. The log says so, and
    "mean.kept" is the share of answers that are learnt from. Answers may be drawn by any sampler.

    Parameters
    ----------
    reward : judges whole answers. threshold : an answer with at least this reward is right.
    group : answers to each prompt. max_new_tokens : of an answer; one that has not ended by then is judged as it
        stands.
    passes : how often a collection is gone through. updates : into how many optimizer steps a pass is cut.
    """

    reference = Reference(
        "Singh et al.",
        2024,
        "Beyond Human Data: Scaling Self-Training for Problem-Solving with Language Models",
        "https://arxiv.org/abs/2312.06585",
    )

    any_sampler = True
    by_answer = (*Answering.by_answer, "kept")

    def __init__(
        self,
        *,
        reward: Reward,
        max_new_tokens: int,
        threshold: float = 1.0,
        group: int = 8,
        passes: int = 1,
        updates: int = 1,
    ):
        super().__init__(reward=reward, max_new_tokens=max_new_tokens, group=group, passes=passes, updates=updates)
        self.threshold = threshold

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With all answers right."""
        return [{"reward": {"use": "length_reward", "target": 2}, "max_new_tokens": 3, "group": 3, "threshold": -100.0}]

    def credit(self, rows: Rows) -> Rows:
        """`kept` (N,), 1 for an answer that is learnt from, and `weights`, 0 for all others."""
        kept = (rows["reward"] >= self.threshold) & ~_repeated(rows, self.group)
        if not bool(kept.any()):
            logger.warning(
                "none of %d answers reaches the threshold of %g: nothing is learnt from them", len(kept), self.threshold
            )
        return {"kept": kept.to(rows["reward"]), "weights": rows["weights"] * kept[:, None]}

    def forward(self, model: Model, batch: Mapping[str, Tensor | None]) -> tuple[Terms, Statistics]:
        """Term "loss", whose weight is tokens, one for each auxiliary loss of the layers, and "feedback"."""
        said, rows = told(model, batch), present(batch)
        weights = said.shifted.weights
        count = weights.sum()
        terms: Terms = {"loss": (-(said.log_probabilities * weights).sum(), count)}
        extra, layers = of_layers(model, said, count)
        kept = mean(rows["kept"].sum(), (rows["length"] > 0).sum())
        return {**terms, **extra}, {**of_answers(said, rows), "mean.kept": kept, **layers}


def _repeated(rows: Rows, group: int) -> Tensor:
    """(N,) bool: an earlier answer of the group is the same, token by token."""
    found = []
    for start in range(0, len(rows["tokens"]), group):
        seen: set[tuple[int, ...]] = set()
        for row in range(start, start + group):
            answer = tuple(rows["tokens"][row][rows["weights"][row] > 0].tolist())
            found.append(answer in seen)
            seen.add(answer)
    return torch.tensor(found)
