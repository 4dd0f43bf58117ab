"""Task `step_beam`: a search over the steps of an answer, led by a reward."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.reward import Reward
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.parts import samplers
from bakeoff.parts.counts import check_counts
from bakeoff.parts.judging import scores

from bakeoff_align.inference.beams import Search, Steps, search
from bakeoff_align.inference.curves import curve, page
from bakeoff_align.inference.questions import Questions

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured


class StepBeam(Task):
    """Accuracy of the answer that beam search over steps finds, against what it costs.

    To each of the first dialogues of a validation split, an answer grows step by step, a step reaching to the end of
    `stop`, such as a line: of the ways in which the beams go on, those that the reward scores highest are kept. The
    reward is given the answers so far as if they had been cut off: a process reward, which judges their steps, a
    verifier or a learned one. In the end the highest scored is the answer; it is right where the judge gives 1 or more.
    One that has not ended after `steps` steps is judged as it stands.

    `accuracy`, `tokens` (drawn for a dialogue, those of dropped answers among them) and `tokens_read` (of prompts and
    answers so far, once a beam and round: the ways in which a beam goes on share one reading, but each round reads
    anew) are those of the most beams; the curve goes over all numbers of beams. Intervals are the bootstrap's over
    dialogues.

    Raises `CapabilityError` where the corpus has no dialogues, the recipe no template, or a prompt no room.

    Parameters
    ----------
    reward : by which answers are kept.
    judge : says which answers are right, such as {use: exact_match}.
    beams : numbers of beams, each tried by itself.
    branches : ways in which each beam goes on.
    stop : what ends a step. A token that holds more than it stays whole.
    temperature : of the draws.
    corpus : whose validation split is asked; null: that of the recipe, which, where it trains on answers that were
        judged, has only prompts that got such.
    dialogues : how many are asked, at most.
    steps, step_tokens : of an answer, and of a step, which is cut there; at most.
    """

    reference = Reference(
        "Snell et al.",
        2024,
        "Scaling LLM Test-Time Compute Optimally can be More Effective than Scaling Model Parameters",
        "https://arxiv.org/abs/2408.03314",
    )
    figures: ClassVar = {
        "accuracy": Figure("more", "share", against="tokens"),
        "tokens": Figure(),
        "tokens_read": Figure(),
    }
    example_model: ClassVar = {
        "data.corpus": {"use": "scratchpad", "task": "addition"},
        "data.template": {"use": "plain"},
    }

    def __init__(
        self,
        *,
        reward: Reward,
        judge: Reward,
        beams: Items[int] = (1, 2, 4),
        branches: int = 4,
        stop: str = "\n",
        temperature: float = 1.0,
        corpus: Corpus | None = None,
        dialogues: int = 100,
        steps: int = 16,
        step_tokens: int = 64,
    ):
        check_counts(branches=branches, dialogues=dialogues, steps=steps, step_tokens=step_tokens)
        check_counts(**{"the smallest of beams": min(beams, default=0)})
        if not stop:
            raise UserError("step_beam: stop is empty; it is what ends a step, such as a line's end")
        self.reward, self.judge, self.corpus = reward, judge, corpus
        self.beams, self.branches, self.dialogues = sorted(set(beams)), branches, dialogues
        self.steps = Steps(stop, steps, step_tokens, samplers.Sample(temperature=temperature))

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Two numbers of beams."""
        judged = {"reward": {"use": "numeric_match"}, "judge": {"use": "exact_match"}}
        return [{**judged, "beams": [1, 2], "branches": 2, "dialogues": 2, "steps": 2, "step_tokens": 3}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Search with each number of beams."""
        questions = Questions(measured, self.dialogues, "step_beam", self.corpus)
        total, tried = len(self.beams) * self.steps.count, []
        for place, width in enumerate(self.beams):
            before = place * self.steps.count
            progress({"step": before, "total": total})
            tried.append(
                search(
                    questions,
                    self.reward,
                    width=width,
                    branches=self.branches,
                    steps=self.steps,
                    told=lambda done, before=before: progress({"step": before + done, "total": total}),  # type: ignore[misc]
                )
            )
        return self.answer(tried)

    def answer(self, tried: list[list[Search]]) -> Answer:
        """Judge the best of each search."""
        best = [[each.beams[0].sample for each in found] for found in tried]
        right = [[float(score >= 1) for score in scores(self.judge, samples)] for samples in best]
        drawn = np.array([[each.drawn for each in found] for found in tried])
        points = curve(np.array(right), self.beams, drawn)
        ways = {"step_beam": points}
        told = (
            f"{len(right[0]):,} dialogues; each beam goes on in {self.branches} ways, for at most {self.steps.count} "
            "steps. 95 % bootstrap intervals over dialogues. Tokens are those drawn, of dropped answers too."
        )
        read = sum(each.read for each in tried[-1]) / len(tried[-1])
        figures = {"accuracy": points[-1][2], "tokens": points[-1][1], "tokens_read": read}
        return Answer(figures, page(told, ways, "beams"), {"dialogues": len(right[0]), "size": "beams", "ways": ways})
