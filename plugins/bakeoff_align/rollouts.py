"""What a finished run answers, and how often it comes right from each step of an answer on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import cached_property
from typing import Any

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Dialogue, Reward, Sample, Sampler, Turn
from bakeoff.interfaces.dialogue import ASSISTANT
from bakeoff.parts.judging import scores

from bakeoff_align.fingerprints import described, of_model

#: Prompts that are answered at once.
PROMPTS = 64

#: How right each of some samples is, from 0 to 1.
Judge = Callable[[Items[Sample]], list[float]]
#: `(dialogues, texts, copies) -> samples`: each dialogue's text, carried on so many times, one after another.
CarryOn = Callable[[Items[Dialogue], Items[str], int], list[Sample]]


def monte_carlo_labels(
    answers: Items[Sample], steps: Items[Items[str]], *, carry_on: CarryOn, judge: Judge, rollouts: int
) -> list[tuple[float, ...]]:
    """How right each step of an answer is: how right `rollouts` answers are on average that begin with it and those
    before it (Wang et al. 2024, arXiv:2312.08935, soft estimation). After the last step there is nothing to be carried
    on: it is as right as the answer.

    Parameters
    ----------
    steps : each answer, cut; at least one step each.
    """
    begun = [(sample.dialogue, "".join(cut[:end])) for sample, cut in zip(answers, steps, strict=True)
             for end in range(1, len(cut))]  # fmt: skip
    told = judge(carry_on([asked for asked, _ in begun], [text for _, text in begun], rollouts))
    means = iter([sum(told[at : at + rollouts]) / rollouts for at in range(0, len(told), rollouts)])
    return [(*(next(means) for _ in cut[1:]), right) for cut, right in zip(steps, judge(answers), strict=True)]


class AnsweringRun:
    """Answers prompts under the run's own template; opened when it is first asked.

    Parameters
    ----------
    run : its folder. device : where its model computes; None: on a GPU if there is one.
    sampler : how tokens are chosen. max_new_tokens : of an answer; None: as many as there is room for.
    seed : what is drawn depends on it, and on the `purpose` of a call.
    """

    def __init__(self, run: str, *, sampler: Sampler, max_new_tokens: int | None, seed: int, device: str | None):
        self.run, self.device = run, device
        self.sampler, self.max_new_tokens, self.seed = sampler, max_new_tokens, seed

    def answers(self, dialogues: Items[Dialogue], copies: int, purpose: str) -> list[Sample]:
        """`copies` answers to each, one after another."""
        return self.carried_on(dialogues, [""] * len(dialogues), copies, purpose)

    def carried_on(self, dialogues: Items[Dialogue], begun: Items[str], copies: int, purpose: str) -> list[Sample]:
        """`copies` answers to each that begin with the text that is given for it, one after another."""
        from bakeoff import complete

        model, tokenizer, template = self._opened
        prompts = [template.prompt(dialogue.prompt, tokenizer) for dialogue in dialogues]
        said = [template.spoken(Turn(ASSISTANT, text), tokenizer)[:-1] for text in begun]
        rows = [prompt + before or [tokenizer.end] for prompt, before in zip(prompts, said, strict=True)]
        found: list[Sample] = []
        for first in range(0, len(rows), PROMPTS):
            seed = hashlib.sha256(f"{self.seed} {purpose} {first}".encode()).digest()
            options: dict[str, Any] = {"sampler": self.sampler, "max_new_tokens": self.max_new_tokens}
            options |= {"copies": copies, "seed": int.from_bytes(seed[:6], "little")}
            told = complete(model, tokenizer, rows[first : first + PROMPTS], **options)
            for place, one in enumerate(told):
                n = first + place // copies
                found.append(Sample(dialogues[n], begun[n] + one.text, prompts[n], said[n] + one.tokens, one.reason))
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides what is answered, but for the device."""
        model, tokenizer, template = self._opened
        parts = described(template), described(self.sampler), of_model(model, tokenizer)
        told = [*parts, self.max_new_tokens, self.seed]
        return hashlib.sha256(f"{told}".encode()).hexdigest()

    @cached_property
    def _opened(self) -> tuple[Any, Any, Any]:
        from bakeoff import load_run

        run = load_run(self.run, device=self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        template = run.recipe.build("data.template")
        if template is None:
            raise UserError(f"{self.run} was trained on no dialogues: its recipe has no data.template")
        return run.model, run.tokenizer, template


def judged_by(reward: Reward) -> Judge:
    """What a reward says, which must lie from 0 to 1."""

    def judge(samples: Items[Sample]) -> list[float]:
        found = scores(reward, samples)
        for value, sample in zip(found, samples, strict=True):
            if not 0 <= value <= 1:
                raise UserError(
                    f"reward {type(reward).__name__} is {value} for the answer {sample.text[:80]!r}; how right an "
                    "answer is lies from 0 to 1: use a reward such as exact_match"
                )
        return found

    return judge
