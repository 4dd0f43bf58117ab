"""Task `preference_accuracy`: which of two completions the model ranks higher."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from html import escape
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.dialogue import Row
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.parts.counts import check_counts
from bakeoff.parts.modes import evaluating

from bakeoff_align.preferences.ranking import Ranking, ranking
from bakeoff_align.preferences.wilson import wilson

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured


class PreferenceAccuracy(Task):
    """The share of held-out pairs whose chosen completion the model ranks higher; equal ones count a half.

    Pairs are the first dialogues of the validation split that have both completions. Pairs with a row that is longer
    than the model reads are left out, and the report says how many.

    Figures: `accuracy`, whose 95 % interval (Wilson 1927) stands in the report; and, to compare it with, `longer`, the
    share of pairs whose chosen completion has more tokens.

    Raises `CapabilityError` where the corpus has no such pairs, the recipe no template, or the model nothing that `by`
    asks for.

    Parameters
    ----------
    pairs : at most.
    by : what completions are ranked by: "score", the head's at the last token; "objective", the reward that the run's
        objective stands for, as of `dpo`; "sum", log-probability; "mean", that of a token on average. null: the first
        of score, objective and sum that the run has.
    """

    reference = Reference(
        "Lambert et al.", 2024, "RewardBench: Evaluating Reward Models for Language Modeling", "https://arxiv.org/abs/2403.13787"
    )  # fmt: skip
    figures: ClassVar = {"accuracy": Figure("more", "share"), "longer": Figure(None, "share")}
    example_model: ClassVar = {
        "data.corpus": {"use": "scratchpad_pairs", "task": "addition", "count": 20, "validation_count": 6},
        "data.template": {"use": "plain"},
        "data.length": 256,
    }

    def __init__(self, *, pairs: int = 1000, by: Literal["score", "objective", "sum", "mean"] | None = None):
        check_counts(pairs=pairs)
        self.pairs, self.by = pairs, by

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """By what the model has, and by means over tokens."""
        return [{"pairs": 4}, {"pairs": 4, "by": "mean"}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Rank both completions of each pair."""
        by = ranking(measured, self.by)
        rows = self._rows(measured)
        limit = measured.model.context.max_length + by.room
        kept = [pair for pair in rows if max(len(row.tokens) for row in pair) <= limit]
        if not kept:
            raise CapabilityError(
                f"preference_accuracy: each of {len(rows)} pairs has a row of over {limit} tokens, which is what the "
                "model reads at most"
            )
        scores: dict[int, float] = {}
        for found in _scored(measured, by, [row for pair in kept for row in pair]):
            scores |= found
            progress({"step": len(scores), "total": 2 * len(kept)})
        over = [scores[2 * i] - scores[2 * i + 1] for i in range(len(kept))]
        right = sum(_won(each) for each in over)
        longer = sum(_won(len(chosen.tokens) - len(rejected.tokens)) for chosen, rejected in kept)
        figures = {"accuracy": right / len(kept), "longer": longer / len(kept)}
        told = f"{len(kept):,} pairs of the validation split. A completion is ranked by {by.words}."
        if len(kept) < len(rows):
            told += f" {len(rows) - len(kept):,} pairs are longer than the model reads, and left out."
        equal = sum(each == 0 for each in over)
        if equal:
            told += f" Of {equal:,} pairs both completions are ranked equal, which counts a half."
        return Answer(figures, _html(told, {"the model": right, "the longer one": longer}, len(kept)))

    def _rows(self, measured: Measured) -> list[tuple[Row, Row]]:
        """What was chosen and what was rejected."""
        data = measured.data
        template = data.template
        if template is None:
            raise CapabilityError(
                "preference_accuracy: the recipe has no data.template, which makes rows of dialogues; such as "
                "data.template: {use: chat}"
            )
        dialogues = (each for each in data.corpus.dialogues("validation") if each.completion and each.rejected)
        found = [
            (
                template.row(dialogue.prompt, str(dialogue.completion), data.tokenizer),
                template.row(dialogue.prompt, str(dialogue.rejected), data.tokenizer),
            )
            for dialogue in islice(dialogues, self.pairs)
        ]
        if not found:
            raise CapabilityError(
                f"preference_accuracy: the validation split of {type(data.corpus).__name__} has no pairs of a "
                "completion that was chosen and one that was rejected"
            )
        return found


def _scored(measured: Measured, by: Ranking, rows: Items[Row]) -> Iterator[dict[int, float]]:
    """Scores by the number of the row. Rows of one length share a batch, so that no part has to know padding."""
    numbers = sorted(range(len(rows)), key=lambda number: len(rows[number].tokens))
    for length, group in groupby(numbers, lambda number: len(rows[number].tokens)):
        alike, at_once = list(group), max(1, measured.batch * measured.length // length)
        for part in (alike[start : start + at_once] for start in range(0, len(alike), at_once)):
            batch = {
                "tokens": torch.tensor([rows[number].tokens for number in part], device=measured.device),
                "weights": torch.tensor([rows[number].weights for number in part], device=measured.device),
            }
            with evaluating(measured.model), torch.no_grad(), measured.autocast():
                found = by.score(batch).double().tolist()
            yield dict(zip(part, found, strict=True))


def _won(over: float) -> float:
    return 0.5 * (1 + (over > 0) - (over < 0))


def _html(told: str, right: dict[str, float], n: int) -> str:
    rows = []
    for name, count in right.items():
        low, high = wilson(count, n)
        share = f"<td>{100 * count / n:.1f} %</td><td>{100 * low:.1f} to {100 * high:.1f} %</td>"
        rows.append(f"<tr><th scope=row>{escape(name)}</th>{share}</tr>")
    head = "".join(f"<th scope=col>{cell}</th>" for cell in ("ranked by", "chosen one higher", "95 % interval"))
    return f"<p>{escape(told)}</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
