"""Objective `verifying`: an answer is right or wrong, which is to be known from each of its tokens on."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from bakeoff.errors import UserError
from bakeoff.interfaces import Dialogue, Encoded, Reference, Row, Template, Tokenizer

from bakeoff_align.objectives.judging.judging import ByLabels

#: What is judged: the text up to each token of the answer, or the whole answer.
LEVELS = ("token", "solution")


class Verifying(ByLabels):
    """`sigma(score)` is the probability that the answer, read so far, will be right; cross-entropy with `right`.

    Parameters
    ----------
    level : "token" judges at each token of the answer, its end included, "solution" at the last one alone.
    language : coefficient of the language loss, where an answer's tokens weigh as much as it is right. (The paper adds
        that of the solutions in its training set; here, those of the right answers among the samples.)
    """

    reference = Reference(
        "Cobbe et al.", 2021, "Training Verifiers to Solve Math Word Problems", "https://arxiv.org/abs/2110.14168"
    )
    packs: ClassVar[bool] = True

    def __init__(self, *, level: str = "token", language: float = 1.0):
        super().__init__(language=language)
        if level not in LEVELS:
            raise UserError(f"objective.level is '{level}'; it is one of {', '.join(LEVELS)}")
        self.level = level

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Each token beside the language loss, and the whole answer alone."""
        return [{}, {"level": "solution", "language": 0.0}]

    def encode(self, dialogue: Dialogue, template: Template, tokenizer: Tokenizer) -> Encoded:
        """One row; `UserError` where there is no answer, or nobody has said how right it is."""
        right = dialogue.right
        if dialogue.completion is None:
            raise UserError("`completion` is not there; a verifier learns from answers")
        if right is None or not 0 <= right <= 1:
            raise UserError(f"`right` is {right}; a verifier learns how right an answer is, from 0 to 1")
        tokens, weights, _ = template.row(dialogue.prompt, dialogue.completion, tokenizer)
        judged = [weight > 0 for weight in weights]
        if self.level == "solution":
            judged = [False] * (len(tokens) - 1) + [True]
        labels = [right if there else math.nan for there in judged]
        return Encoded([Row(tokens, [weight * right for weight in weights], labels)])
