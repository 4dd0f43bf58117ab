"""What corpora share that hold the answers of a finished run."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence as Items
from itertools import count, islice
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import Corpus, Dialogue, Reward, Sample, Sampler
from bakeoff.parts import samplers

from bakeoff_align.fingerprints import described
from bakeoff_align.rollouts import PROMPTS, AnsweringRun, judged_by


class Answered(Corpus):
    """What a run answers to the questions of another corpus, judged. Texts are those of that corpus.

    Parameters
    ----------
    corpus : asks. run : the folder of the run that answers.
    reward : how right an answer is, from 0 to 1.
    answers : to each question, drawn by `sampler` (None: from the model's own distribution), each of at most
        `max_new_tokens` (None: as many as there is room for).
    seed : of what is drawn. device : where the model computes; None: on a GPU if there is one.
    """

    def __init__(
        self,
        corpus: Corpus,
        run: str,
        reward: Reward,
        answers: int,
        sampler: Sampler | None,
        max_new_tokens: int | None,
        seed: int,
        device: str | None,
    ):
        if answers < 1:
            raise UserError(f"answers is {answers}; each question is answered at least once")
        self.corpus, self.reward, self.answers = corpus, reward, answers
        self.answering = AnsweringRun(
            run, sampler=sampler or samplers.Sample(), max_new_tokens=max_new_tokens, seed=seed, device=device
        )
        self.judge = judged_by(reward)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it needs a run."""
        return []

    @abstractmethod
    def judged(self, dialogues: Items[Dialogue], samples: Items[Sample], purpose: str) -> Iterator[Dialogue]:
        """What is known of the answers, `answers` to each of the dialogues, as dialogues."""

    @abstractmethod
    def decides(self) -> Items[object]:
        """What else decides what the dialogues are."""

    def documents(self, split: str) -> Iterator[str]:
        return self.corpus.documents(split)

    def dialogues(self, split: str) -> Iterator[Dialogue]:
        asked = self.corpus.dialogues(split)
        for number in count():
            some = list(islice(asked, PROMPTS))
            if not some:
                return
            purpose = f"{split} {number}"
            yield from self.judged(some, self.answering.answers(some, self.answers, purpose), purpose)

    def fingerprint(self) -> str:
        parts = [self.corpus.fingerprint(), self.answering.fingerprint, described(self.reward), self.answers]
        return hashlib.sha256(f"{type(self).__qualname__} {[*parts, *self.decides()]}".encode()).hexdigest()

    @property
    def licence(self) -> str:
        return self.corpus.licence
