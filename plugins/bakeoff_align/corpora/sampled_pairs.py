"""Corpus `sampled_pairs`: of the answers of a finished run to a question, a better and a worse one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import replace

from bakeoff.errors import UserError
from bakeoff.interfaces import Corpus, Dialogue, Reference, Reward, Sample, Sampler

from bakeoff_align.corpora.answered import Answered

logger = logging.getLogger(__name__)


class SampledPairs(Answered):
    """The answer that the reward likes best, and the one that it likes least: what preferences are learnt from.

    Of equals, the first of both; an answer without a text is none. A question whose answers are all worth the same
    gives no pair; the log says how many there are.

    Parameters
    ----------
    corpus : asks; its splits are kept.
    run : the folder of the run that answers: the one that learns from the pairs, so that they are its own.
    reward : how right an answer is, from 0 to 1, such as `{use: exact_match}`.
    answers : to each question, two at least.
    sampler : how they are drawn; None: from the model's own distribution.
    max_new_tokens : of an answer; None: as many as there is room for.
    seed : of what is drawn.
    device : where the model computes; None: on a GPU if there is one.
    """

    reference = Reference(
        "Guo et al.",
        2024,
        "Direct Language Model Alignment from Online AI Feedback",
        "https://arxiv.org/abs/2402.04792",
    )

    def __init__(
        self,
        *,
        corpus: Corpus,
        run: str,
        reward: Reward,
        answers: int = 8,
        sampler: Sampler | None = None,
        max_new_tokens: int | None = None,
        seed: int = 0,
        device: str | None = None,
    ):
        if answers < 2:
            raise UserError(f"answers is {answers}; a pair takes at least 2 answers to a question")
        super().__init__(corpus, run, reward, answers, sampler, max_new_tokens, seed, device)

    def judged(self, dialogues: Items[Dialogue], samples: Items[Sample], purpose: str) -> Iterator[Dialogue]:
        worth, alike = self.judge(samples), 0
        for number, dialogue in enumerate(dialogues):
            places = [n for n in range(number * self.answers, (number + 1) * self.answers) if samples[n].text]
            if len({worth[n] for n in places}) < 2:
                alike += 1
                continue
            best, worst = max(places, key=worth.__getitem__), min(places, key=worth.__getitem__)
            asked = replace(dialogue, steps=(), step_labels=(), margin=worth[best] - worth[worst])
            yield replace(asked, completion=samples[best].text, rejected=samples[worst].text)
        if alike:
            logger.info(
                "%s: %d of %d questions have answers that are all worth the same, and give no pair",
                purpose, alike, len(dialogues),
            )  # fmt: skip

    def decides(self) -> Items[object]:
        return ()
