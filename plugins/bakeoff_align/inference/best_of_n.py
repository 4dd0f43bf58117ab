"""Task `best_of_n`: several answers to each question, and ways to make one of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.dialogue import Dialogue
from bakeoff.interfaces.reward import Reward, Sample
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.parts import samplers
from bakeoff.parts.counts import check_counts
from bakeoff.parts.judging import scores

from bakeoff_align.inference.curves import curve, page
from bakeoff_align.inference.pools import best_of, budgets, choices, pass_at_k, voted
from bakeoff_align.inference.questions import FindsAnswers, Questions

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured
    from bakeoff.model.generate import Completion

#: How much the vote of each answer in a pool weighs, by their scores.
WEIGHTS: dict[str, Callable[[list[float]], list[float]]] = {
    "score": list,
    "exp": lambda found: [math.exp(score - max(found)) for score in found],
}


class Pool(NamedTuple):
    """The answers to one question: what each says, how right it is, its score and weight, and tokens on average.

    Without a reward, scores and weights are empty.
    """

    answers: list[str]
    right: list[float]
    scores: list[float]
    weights: list[float]
    tokens: float


class BestOfN(Task):
    """Accuracy when one answer is made of several, against how many are drawn and what they cost.

    To each of the first dialogues of a validation split `samples` answers are drawn. Of n of them,

    - `best_of_n` takes the one that the reward scores highest: a verifier, a learned reward, a process reward;
    - `majority` takes the answer that most give (self-consistency), which needs no reward;
    - `weighted_majority` the one whose givers have the largest scores in sum;
    - `pass_at_n` counts a question as answered if one of them is right: what a perfect choice would reach.

    Each is the mean over which n of the samples are drawn: exact, but for votes where there are over 20,000 choices,
    of which 1000 are then drawn. Where several stand equal, each is taken to be chosen as often as the others. An
    answer is right where the judge gives 1 or more; what it says is what the judge's `answer_of` finds in it, and one
    in which it finds nothing has no vote. Curves go over 1, 2, 4, … samples; figures are those of all, and `mean` that
    of one. Intervals are the bootstrap's over dialogues. Tokens are those that the model draws, end ids among them:
    neither the prompt, which is read once for all answers, nor what the reward reads.

    Raises `CapabilityError` where the corpus has no dialogues, the recipe no template, or a prompt no room.

    Parameters
    ----------
    judge : says which answers are right, such as {use: exact_match}.
    reward : by which answers are chosen; null: by votes alone.
    samples : answers to each dialogue.
    temperature : of their draws.
    corpus : whose validation split is asked; null: that of the recipe, which, where it trains on answers that were
        judged, has only prompts that got such.
    dialogues : how many are asked, at most.
    max_new_tokens : of an answer, where the model's max_length leaves room for them.
    weight : of a vote: the answer's `score`, which must not be negative, as of a probability; or its `exp`, for rewards
        that are learned from preferences and whose score is a logarithm.
    """

    reference = Reference(
        "Cobbe et al.", 2021, "Training Verifiers to Solve Math Word Problems", "https://arxiv.org/abs/2110.14168"
    )
    figures: ClassVar = {
        "mean": Figure("more", "share"),
        "best_of_n": Figure("more", "share"),
        "majority": Figure("more", "share"),
        "weighted_majority": Figure("more", "share"),
        "pass_at_n": Figure("more", "share"),
        "tokens": Figure(),
    }
    example_model: ClassVar = {
        "data.corpus": {"use": "scratchpad", "task": "addition"},
        "data.template": {"use": "plain"},
    }

    def __init__(
        self,
        *,
        judge: Reward,
        reward: Reward | None = None,
        samples: int = 16,
        temperature: float = 1.0,
        corpus: Corpus | None = None,
        dialogues: int = 200,
        max_new_tokens: int = 256,
        weight: Literal["score", "exp"] = "score",
    ):
        check_counts(samples=samples, dialogues=dialogues, max_new_tokens=max_new_tokens)
        if not isinstance(judge, FindsAnswers):
            raise UserError(
                f"best_of_n: judge {type(judge).__name__} does not find the answer in a text (it has no `answer_of`), "
                "so that votes cannot be counted: use one that compares answers, such as {use: exact_match}"
            )
        self.judge, self.reward, self.finds, self.corpus = judge, reward, judge, corpus
        self.samples, self.dialogues, self.max_new_tokens = samples, dialogues, max_new_tokens
        self.sampler, self.weight = samplers.Sample(temperature=temperature), weight

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With a reward, and by votes alone."""
        tiny = {"judge": {"use": "exact_match"}, "samples": 3, "dialogues": 3, "max_new_tokens": 4}
        return [{**tiny, "reward": {"use": "numeric_match"}}, tiny]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Draw, judge and choose."""
        questions = Questions(measured, self.dialogues, "best_of_n", self.corpus)
        pools: dict[int, Pool] = {}
        drawn = questions.continued(
            questions.prompts, copies=self.samples, sampler=self.sampler, most=self.max_new_tokens, purpose="answers"
        )
        for number, completions in drawn:
            pools[number] = self.pool(questions.dialogues[number], questions.prompts[number], completions)
            progress({"step": len(pools), "total": len(questions.prompts)})
        return self.answer([pools[number] for number in sorted(pools)])

    def pool(self, dialogue: Dialogue, prompt: list[int], completions: list[Completion]) -> Pool:
        """The answers to one dialogue, judged."""
        samples = [Sample(dialogue, each.text, prompt, each.tokens, each.reason) for each in completions]
        right = [float(score >= 1) for score in scores(self.judge, samples)]
        found = [] if self.reward is None else scores(self.reward, samples)
        if self.weight == "score" and min(found, default=0.0) < 0:
            raise UserError(
                f"best_of_n: reward {type(self.reward).__name__} is {min(found):.4g} for an answer, and no vote weighs "
                "less than 0: give weight: exp"
            )
        answers = [self.finds.answer_of(each.text) for each in completions]
        tokens = sum(len(each.tokens) for each in completions) / len(completions)
        return Pool(answers, right, found, WEIGHTS[self.weight](found), tokens)

    def answer(self, pools: list[Pool]) -> Answer:
        """Curves over the number of answers, and the figures at their ends."""
        sizes = budgets(self.samples)
        tokens = np.array([[n * pool.tokens for pool in pools] for n in sizes])
        values: dict[str, list[list[float]]] = {name: [] for name in self._ways()}
        for n in sizes:
            among = choices(self.samples, n, seed=0)
            for name, way in self._ways().items():
                values[name].append([way(pool, n, among) for pool in pools])
        ways = {name: curve(np.array(each), sizes, tokens) for name, each in values.items()}
        told = (
            f"{len(pools):,} dialogues, {self.samples} answers to each. Of n answers: means over which of them are "
            "drawn, with 95 % bootstrap intervals over dialogues. Tokens are those drawn."
        )
        figures = {name: points[-1][2] for name, points in ways.items()} | {"tokens": float(tokens[-1].mean())}
        mean = {"mean": ways["pass_at_n"][0][2]}
        data = {"dialogues": len(pools), "size": "answers", "ways": ways}
        return Answer(mean | figures, page(told, ways, "answers"), data)

    def _ways(self) -> dict[str, Callable[[Pool, int, np.ndarray], float]]:
        """How right each way of choosing is of n answers of a pool."""
        alone: dict[str, Callable[[Pool, int, np.ndarray], float]] = {
            "majority": lambda pool, n, among: voted(pool.answers, [1.0] * self.samples, pool.right, among),
            "pass_at_n": lambda pool, n, among: pass_at_k(self.samples, round(sum(pool.right)), n),
        }
        if self.reward is None:
            return alone
        return {
            "best_of_n": lambda pool, n, among: best_of(pool.scores, pool.right, n),
            "weighted_majority": lambda pool, n, among: voted(pool.answers, pool.weights, pool.right, among),
            **alone,
        }
