"""Objective `process`: each step of an answer is right or wrong."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, ClassVar

from bakeoff.errors import UserError
from bakeoff.interfaces import Dialogue, Encoded, Reference, Row, Template, Tokenizer

from bakeoff_align.objectives.judging.judging import ByLabels
from bakeoff_align.steps import ends_of


class Process(ByLabels):
    """`sigma(score)` at the last token of a step is the probability that the step is right; cross-entropy with labels.

    Labels from 0 to 1 come with the dialogues, exact or counted by rollouts (`monte_carlo_steps`).

    Parameters
    ----------
    language : coefficient of the language loss, where a token weighs as much as its step is right.
    """

    reference = Reference("Lightman et al.", 2023, "Let's Verify Step by Step", "https://arxiv.org/abs/2305.20050")
    packs: ClassVar[bool] = True

    def __init__(self, *, language: float = 0.0):
        super().__init__(language=language)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Alone, and beside a language loss."""
        return [{}, {"language": 0.5}]

    def encode(self, dialogue: Dialogue, template: Template, tokenizer: Tokenizer) -> Encoded:
        """One row; `UserError` where steps are missing, do not make up the completion, or have no label each."""
        steps, labels = dialogue.steps, dialogue.step_labels
        _check(dialogue)
        prompt = template.prompt(dialogue.prompt, tokenizer)
        spoken, ends = ends_of("".join(steps), steps, template, tokenizer)
        for number, (end, following) in enumerate(pairwise(ends), 1):
            if end == following:
                raise UserError(f"steps {number} and {number + 1} end in the same token; use longer steps")
        told, weights = [math.nan] * len(spoken), [0.0] * len(spoken)
        begin = 0
        for end, label in zip(ends, labels, strict=True):
            told[end] = label
            weights[begin : end + 1] = [label] * (end + 1 - begin)
            begin = end + 1
        weights[begin:] = [labels[-1]] * (len(spoken) - begin)
        before = len(prompt)
        return Encoded([Row(prompt + spoken, [0.0] * before + weights, [math.nan] * before + told)])


def _check(dialogue: Dialogue) -> None:
    steps, labels = dialogue.steps, dialogue.step_labels
    if not steps:
        raise UserError("`steps` is empty; process supervision takes a completion that is cut into steps")
    if len(steps) != len(labels):
        raise UserError(f"{len(steps)} steps and {len(labels)} step_labels; each step takes one")
    if "" in steps:
        raise UserError(f"step {steps.index('') + 1} of {len(steps)} is empty")
    if dialogue.completion is not None and "".join(steps) != dialogue.completion:
        joined = "".join(steps)
        raise UserError(
            f"the steps, joined, are {len(joined)} characters that are not the {len(dialogue.completion)} of the "
            f"completion: {joined[:60]!r} against {dialogue.completion[:60]!r}"
        )
    for number, label in enumerate(labels, 1):
        if not 0 <= label <= 1:
            raise UserError(f"the label of step {number} is {label}; it must lie from 0 (wrong) to 1 (right)")
