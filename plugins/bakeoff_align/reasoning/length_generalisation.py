"""Task `length_generalisation`: how far what was learnt from short exercises carries."""

from __future__ import annotations

from collections.abc import Sequence as Items
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from bakeoff.errors import CapabilityError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.dialogue import ASSISTANT, Dialogue, Turn
from bakeoff.interfaces.reward import Reward, Sample
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.parts.counts import check_counts
from bakeoff.parts.curve_html import Line, curve_html, curve_style
from bakeoff.parts.judging import scores
from bakeoff.parts.resampling import ratio

from bakeoff_align.inference.questions import Questions
from bakeoff_align.reasoning.asking import Asking, Prompt
from bakeoff_align.rewards.exact_match import ExactMatch

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured

NAME = "length_generalisation"
#: Dialogues of the train split whose lengths are those that were trained.
SEARCHED = 1000


class LengthGeneralisation(Task):
    """The share of exercises that are answered rightly, by their length, each by the likeliest token.

    Exercises are the first dialogues of the validation split, which say their length, as those of `scratchpad` do: its
    `validation_lengths` should hold those of training and longer ones. `accuracy` is over all of them, `within` over
    those no longer than the longest that was trained, `beyond` over the others. An answer is cut where the longest
    right one of its length ends.

    Raises `CapabilityError` where dialogues have no length or no completion, the recipe has no template, or an answer
    has no room in the model's `max_length`.

    Parameters
    ----------
    judge : says which answers are right, by 1 or more; null: `exact_match`.
    exercises : how many, at most, of all lengths together.
    """

    reference = Reference(
        "Nye et al.",
        2021,
        "Show Your Work: Scratchpads for Intermediate Computation with Language Models",
        "https://arxiv.org/abs/2112.00114",
    )
    figures: ClassVar = {name: Figure("more", "share") for name in ("accuracy", "within", "beyond")}
    example_model: ClassVar = {
        "data.corpus": {
            "use": "scratchpad",
            "task": "parity",
            "lengths": [2, 3],
            "validation_lengths": [2, 5],
            "validation_count": 8,
        },
        "data.template": {"use": "plain"},
    }

    def __init__(self, *, judge: Reward | None = None, exercises: int = 200):
        check_counts(exercises=exercises)
        self.judge, self.exercises = judge, exercises

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with fewer under another judge."""
        return [{}, {"exercises": 3, "judge": {"use": "numeric_match"}}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Ask at every length."""
        questions = Questions(measured, self.exercises, NAME)
        trained = _trained(measured)
        by_length: dict[int, list[Dialogue]] = {}
        for dialogue in questions.dialogues:
            by_length.setdefault(_length(dialogue), []).append(dialogue)
        rooms = {length: _room(questions, by_length[length]) for length in sorted(by_length)}
        total = len(questions.dialogues)
        asking = Asking(questions, max(rooms.values()), lambda done: progress({"step": done, "total": total}))
        right = {length: self.right(asking, by_length[length], room) for length, room in rooms.items()}
        return _answer(right, trained)

    def right(self, asking: Asking, dialogues: Items[Dialogue], most: int) -> list[float]:
        """1 for each answer that is right, else 0."""
        said = asking.say([Prompt(dialogue.prompt) for dialogue in dialogues], "answers", most=most)
        samples = [
            Sample(dialogue, text, asking.ids(Prompt(dialogue.prompt)), [])
            for dialogue, text in zip(dialogues, said, strict=True)
        ]
        return [float(score >= 1) for score in scores(self.judge or ExactMatch(), samples)]


def _length(dialogue: Dialogue) -> int:
    length = dialogue.details.get("length")
    if not isinstance(length, int) or length < 1 or dialogue.completion is None:
        lacks = "completion" if isinstance(length, int) and length >= 1 else "length in its details"
        raise CapabilityError(
            f"{NAME}: a dialogue of the corpus has no {lacks}: use a corpus whose dialogues have both, such as "
            "{use: scratchpad, task: addition}"
        )
    return length


def _trained(measured: Measured) -> tuple[int, int]:
    """Shortest and longest of the train split."""
    lengths = [_length(dialogue) for dialogue in islice(measured.data.corpus.dialogues("train"), SEARCHED)]
    return min(lengths), max(lengths)


def _room(questions: Questions, dialogues: Items[Dialogue]) -> int:
    """Tokens of the longest right answer; `CapabilityError` where it has no room behind the longest prompt."""
    data, limit = questions.measured.data, questions.measured.model.context.max_length
    assert data.template is not None
    prompts = [len(data.template.prompt(each.prompt, data.tokenizer)) for each in dialogues]
    answers = [len(data.template.spoken(Turn(ASSISTANT, each.completion or ""), data.tokenizer)) for each in dialogues]
    wanted = max(prompts) + max(answers)
    if wanted > limit:
        raise CapabilityError(
            f"{NAME}: exercises of length {_length(dialogues[0])} take {wanted} tokens with their answers, but the "
            f"model's max_length is {limit}: train with a longer data.length, or ask for shorter validation_lengths"
        )
    return max(answers)


def _answer(right: dict[int, list[float]], trained: tuple[int, int]) -> Answer:
    parts = {
        "accuracy": [value for found in right.values() for value in found],
        "within": [value for length, found in right.items() if length <= trained[1] for value in found],
        "beyond": [value for length, found in right.items() if length > trained[1] for value in found],
    }
    figures = {name: sum(values) / len(values) for name, values in parts.items() if values}
    curve = [
        [length, *ratio(np.array(found), np.ones(len(found)), seed=0), len(found)] for length, found in right.items()
    ]
    return Answer(figures, _html(curve, trained, figures), {"trained": list(trained), "curve": curve})


def _html(curve: Items[Items[float]], trained: tuple[int, int], figures: dict[str, float]) -> str:
    line = Line("", [(point[0], point[1]) for point in curve], 0, band=[(point[2], point[3]) for point in curve])
    drawn = curve_html([line], "length of the exercise", "share answered rightly", (trained[1], "longest trained"))
    shares = "; ".join(f"{name} {100 * share:.1f} %" for name, share in figures.items())
    counts = sorted({int(point[4]) for point in curve})
    told = (
        f"Right: {shares}. Trained on lengths {trained[0]} to {trained[1]}; {' or '.join(map(str, counts))} exercises "
        "of each length, with 95 % bootstrap intervals over them."
    )
    return f"{curve_style()}<p>{escape(told)}</p>{drawn}"
