"""Corpus `sampled_answers`: answers of a finished run, and how right each of them is."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import replace

from bakeoff.interfaces import Corpus, Dialogue, Reference, Reward, Sample, Sampler

from bakeoff_align.corpora.answered import Answered


class SampledAnswers(Answered):
    """Each answer is a completion that is `right` by as much as the reward says: what a verifier is trained on.

    Parameters
    ----------
    corpus : asks; its splits are kept.
    run : the folder of the run that answers.
    reward : how right an answer is, from 0 to 1, such as `{use: exact_match}`.
    answers : to each question; the paper has 100.
    sampler : how they are drawn; None: from the model's own distribution.
    max_new_tokens : of an answer; None: as many as there is room for.
    seed : of what is drawn.
    device : where the model computes; None: on a GPU if there is one.
    """

    reference = Reference(
        "Cobbe et al.", 2021, "Training Verifiers to Solve Math Word Problems", "https://arxiv.org/abs/2110.14168"
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
        super().__init__(corpus, run, reward, answers, sampler, max_new_tokens, seed, device)

    def judged(self, dialogues: Items[Dialogue], samples: Items[Sample], purpose: str) -> Iterator[Dialogue]:
        for sample, right in zip(samples, self.judge(samples), strict=True):
            asked = replace(sample.dialogue, rejected=None, steps=(), step_labels=())
            yield replace(asked, completion=sample.text, right=right)

    def decides(self) -> Items[object]:
        return ()
