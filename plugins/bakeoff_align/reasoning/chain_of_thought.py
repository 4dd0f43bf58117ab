"""Task `chain_of_thought`: questions answered at once, and after thinking aloud."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.dialogue import Dialogue
from bakeoff.interfaces.reward import Reward
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.parts.counts import check_counts

from bakeoff_align.inference.questions import Questions
from bakeoff_align.reasoning.asking import Asking
from bakeoff_align.reasoning.ways import Direct, FewShot, Reply, Scratchpad, Way, ZeroShot
from bakeoff_align.rewards.exact_match import ExactMatch

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured

#: Dialogues of the train split in which examples are looked for.
SEARCHED = 1000


class ChainOfThought(Task):
    """The share of questions that are answered rightly, asked in four ways, each by the likeliest token.

    Questions are the first dialogues of the validation split that have an answer.

    - `direct`: the answer at once; of a model that learnt from scratchpads, the line behind an empty one.
    - `scratchpad`: as the model learnt it, where its completions have scratchpads.
    - `zero_shot`: "Q: …" and "A: Let's think step by step."; behind what the model makes of it, "Therefore, the answer
      (arabic numerals) is". What it then says first is its answer.
    - `few_shot`: up to `shots` examples of the train split, as many as have room; each ends "The answer is …".

    Conclusions of the last two agree with the right answer by their first number; digits that stand apart, as in 8 6,
    are one number. A way that has no room has no figure, and the report says why.

    Raises `CapabilityError` where the corpus has no dialogues with answers, the recipe no template, or a question no
    room.

    Parameters
    ----------
    judge : says which answers are right, by 1 or more; null: `exact_match`.
    exercises : questions, at most.
    shots : examples, at most; 0: no `few_shot`.
    max_new_tokens : of an answer or a thought.
    """

    reference = Reference(
        "Kojima et al.", 2022, "Large Language Models are Zero-Shot Reasoners", "https://arxiv.org/abs/2205.11916"
    )
    figures: ClassVar = {name: Figure("more", "share") for name in ("direct", "scratchpad", "zero_shot", "few_shot")}
    example_model: ClassVar = {
        "data.corpus": {"use": "scratchpad", "task": "parity", "lengths": [2, 4], "validation_count": 4},
        "data.template": {"use": "plain"},
        "data.length": 256,
    }

    def __init__(self, *, judge: Reward | None = None, exercises: int = 200, shots: int = 4, max_new_tokens: int = 256):
        check_counts(exercises=exercises, max_new_tokens=max_new_tokens)
        if shots < 0:
            raise ValueError(f"shots is {shots}; it must be 0 or more")
        self.judge, self.exercises, self.shots, self.max_new_tokens = judge, exercises, shots, max_new_tokens

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """All ways, and those without examples under another judge."""
        tiny = {"exercises": 3, "max_new_tokens": 8}
        return [{**tiny, "shots": 2}, {**tiny, "shots": 0, "judge": {"use": "numeric_match"}}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Ask in every way."""
        questions = Questions(measured, self.exercises, "chain_of_thought")
        dialogues = [dialogue for dialogue in questions.dialogues if dialogue.answer is not None]
        if not dialogues:
            raise CapabilityError(
                f"chain_of_thought: no dialogue of {type(measured.data.corpus).__name__} has an answer to compare with"
            )
        ways = self.ways(measured)
        total = len(dialogues) * sum(way.stages for way in ways.values())
        asking = Asking(questions, self.max_new_tokens, lambda done: progress({"step": done, "total": total}))
        replies, reasons = self._asked(ways, asking, dialogues)
        figures = {name: sum(reply.right for reply in found) / len(found) for name, found in replies.items()}
        told = [f"{len(dialogues):,} questions, each answered by the likeliest token."]
        few = ways.get("few_shot")
        if isinstance(few, FewShot) and "few_shot" in replies:
            told.append(f"Few-shot: {len(few.shown)} examples of the train split.")
        told += [f"{ways[name].words.capitalize()}: not asked; {reason}." for name, reason in reasons.items()]
        return Answer(figures, _html(" ".join(told), ways, figures, replies, dialogues))

    def ways(self, measured: Measured) -> dict[str, Way]:
        """By the name of their figure."""
        judge = self.judge or ExactMatch()
        found: dict[str, Way] = {"direct": Direct(judge), "scratchpad": Scratchpad(judge), "zero_shot": ZeroShot()}
        if self.shots:
            known = (
                dialogue
                for dialogue in islice(measured.data.corpus.dialogues("train"), SEARCHED)
                if dialogue.completion is not None and dialogue.answer is not None
            )
            found["few_shot"] = FewShot(list(islice(known, self.shots)))
        return found

    def _asked(
        self, ways: Mapping[str, Way], asking: Asking, dialogues: Items[Dialogue]
    ) -> tuple[dict[str, list[Reply]], dict[str, str]]:
        """The replies of each way, or why it has none. Direct answers have room, or nothing has."""
        replies, reasons = {}, {}
        for name, way in ways.items():
            try:
                replies[name] = way.replies(asking, dialogues)
            except CapabilityError as error:
                if name == "direct":
                    raise
                reasons[name] = str(error)
        return replies, reasons


def _html(
    told: str,
    ways: Mapping[str, Way],
    figures: Mapping[str, float],
    replies: Mapping[str, Items[Reply]],
    dialogues: Items[Dialogue],
) -> str:
    """The share of each way, and what was said to the first question."""
    rows = "".join(
        f"<tr><th scope=row>{escape(ways[name].words)}</th><td>{100 * share:.1f} %</td></tr>"
        for name, share in figures.items()
    )
    head = "<thead><tr><th scope=col>asked</th><th scope=col>right</th></tr></thead>"
    first = dialogues[0]
    said = "".join(
        f"<h4>{escape(ways[name].words)}: {'right' if one.right else 'wrong'}</h4><pre>{escape(one.said)}</pre>"
        for name, (one, *_) in replies.items()
    )
    asked = f"<pre>{escape(first.prompt[-1].text)}</pre><p>Right: {escape(str(first.answer))}</p>"
    return (
        f"<p>{escape(told)}</p><table>{head}<tbody>{rows}</tbody></table>"
        f"<details><summary>what is said to the first question</summary>{asked}{said}</details>"
    )
