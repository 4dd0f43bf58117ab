"""Corpus `monte_carlo_steps`: answers of a finished run, and how right each of their steps is, by rollouts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import partial

from bakeoff.errors import UserError
from bakeoff.interfaces import Corpus, Dialogue, Reference, Reward, Sample, Sampler

from bakeoff_align.corpora.answered import Answered
from bakeoff_align.rollouts import monte_carlo_labels
from bakeoff_align.steps import cut

logger = logging.getLogger(__name__)


class MonteCarloSteps(Answered):
    """Each answer is cut into steps; a step is as right as answers are, on average, that the run begins with the steps
    up to it: what the objective `process` is trained on. Answers without a text have no steps and are left out, which
    is told.

    Parameters
    ----------
    corpus : asks; its splits are kept.
    run : the folder of the run that answers, and that carries on its answers.
    reward : how right an answer is, from 0 to 1, such as `{use: exact_match}`.
    rollouts : from behind each step but the last.
    separator : where steps end; it belongs to the step before it.
    answers : to each question.
    sampler : how they are drawn; None: from the model's own distribution.
    max_new_tokens : of an answer, and of what is added to one; None: as many as there is room for.
    seed : of what is drawn.
    device : where the model computes; None: on a GPU if there is one.
    """

    reference = Reference(
        "Wang et al.",
        2024,
        "Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human Annotations",
        "https://arxiv.org/abs/2312.08935",
    )

    def __init__(
        self,
        *,
        corpus: Corpus,
        run: str,
        reward: Reward,
        rollouts: int = 8,
        separator: str = "\n",
        answers: int = 1,
        sampler: Sampler | None = None,
        max_new_tokens: int | None = None,
        seed: int = 0,
        device: str | None = None,
    ):
        super().__init__(corpus, run, reward, answers, sampler, max_new_tokens, seed, device)
        if rollouts < 1:
            raise UserError(f"rollouts is {rollouts}; there must be at least 1")
        if not separator:
            raise UserError("separator is empty; it is the text at which steps end")
        self.rollouts, self.separator = rollouts, separator

    def judged(self, dialogues: Items[Dialogue], samples: Items[Sample], purpose: str) -> Iterator[Dialogue]:
        written = [sample for sample in samples if sample.text]
        if len(written) < len(samples):
            left = len(samples) - len(written)
            logger.warning("%d of %d answers have no text, and so no steps: they are left out", left, len(samples))
        steps = [cut(sample.text, self.separator) for sample in written]
        labels = monte_carlo_labels(
            written,
            steps,
            carry_on=partial(self.answering.carried_on, purpose=f"{purpose} rollouts"),
            judge=self.judge,
            rollouts=self.rollouts,
        )
        for sample, own, told in zip(written, steps, labels, strict=True):
            asked = replace(sample.dialogue, rejected=None, steps=tuple(own), step_labels=told)
            yield replace(asked, completion=sample.text, right=told[-1])

    def decides(self) -> Items[object]:
        return self.rollouts, self.separator
