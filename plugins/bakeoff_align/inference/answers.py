"""Task `answers`: what a model's answers are like."""

from __future__ import annotations

from collections.abc import Sequence as Items
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.reward import Reward, Sample
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.parts import samplers
from bakeoff.parts.counts import check_counts
from bakeoff.parts.judging import scores
from bakeoff.parts.resampling import Ratio, ratio

from bakeoff_align.fingerprints import of_ids
from bakeoff_align.inference.questions import Questions
from bakeoff_align.inference.spread import Spread, spreads
from bakeoff_align.rewards.final import asked

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured

#: Dialogues whose first answer a report shows.
SHOWN = 8
UNITS = {"reward": "an answer", "kl": "nats an answer", "entropy": "nats a token", "length": "tokens an answer"}


class Answers(Task):
    """How good a model's answers are, how far they are from those of another run, and how sure it is of them.

    To each of the first dialogues of a validation split `samples` answers are drawn from the model's own distribution.

    - `reward` : of an answer, on average. Give what is really wanted, not what was trained on: a learned reward that
      rises while this one falls is being exploited.
    - `kl` : nats an answer, from the model's answers to those that the `reference` would give; summed over the whole
      distribution of each token. How much of it was spent is what a reward is drawn against (Gao et al. 2023).
    - `entropy` : nats a token; near 0 the answers to a prompt are all the same.
    - `length` : tokens an answer, its end among them.

    Intervals are the bootstrap's over dialogues.

    Raises `CapabilityError` where the corpus has no dialogues, the recipe no template, or a prompt no room, and
    `UserError` where the reference has another tokenizer.

    Parameters
    ----------
    reward : judges answers.
    reference : folder of a run, such as the one that feedback began from; null: no `kl`.
    samples : answers to each dialogue.
    corpus : whose validation split is asked; null: that of the recipe, which, where it trains on answers that were
        judged, has only prompts that got such.
    dialogues : how many are asked, at most.
    max_new_tokens : of an answer, where the model's max_length leaves room for them.
    """

    reference = Reference(
        "Gao et al.", 2023, "Scaling Laws for Reward Model Overoptimization", "https://arxiv.org/abs/2210.10760"
    )
    figures: ClassVar = {
        "reward": Figure("more", against="kl"),
        "kl": Figure(),
        "entropy": Figure(),
        "length": Figure(),
    }
    example_model: ClassVar = {
        "data.corpus": {"use": "scratchpad", "task": "addition"},
        "data.template": {"use": "plain"},
    }

    def __init__(
        self,
        *,
        reward: Reward,
        reference: str | None = None,
        samples: int = 8,
        corpus: Corpus | None = None,
        dialogues: int = 200,
        max_new_tokens: int = 256,
    ):
        check_counts(samples=samples, dialogues=dialogues, max_new_tokens=max_new_tokens)
        self.reward, self.run, self.corpus = reward, reference, corpus
        self.samples, self.dialogues, self.max_new_tokens = samples, dialogues, max_new_tokens

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Without a reference, which is a run."""
        return [{"reward": {"use": "exact_match"}, "samples": 2, "dialogues": 3, "max_new_tokens": 4}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Draw, judge, and read again under both models."""
        other = None if self.run is None else opened(self.run, measured)
        questions = Questions(measured, self.dialogues, "answers", self.corpus)
        total, samples = 2 * len(questions.prompts) * self.samples, self.drawn(questions, progress)
        found: dict[int, Spread] = {}
        with measured.autocast():
            sizes = {"text_size": measured.data.tokenizer.text_size, "tokens": measured.batch * measured.length}
            for part in spreads(measured.model, other, samples, **sizes):
                found |= part
                progress({"step": len(samples) + len(found), "total": total})
        return self.answer(samples, scores(self.reward, samples), [found[n] for n in range(len(samples))])

    def drawn(self, questions: Questions, progress: Progress) -> list[Sample]:
        """`samples` answers to each dialogue, one after another."""
        sampler, count = samplers.Sample(), len(questions.prompts)
        by_number: dict[int, list[Sample]] = {}
        for number, completions in questions.continued(
            questions.prompts, copies=self.samples, sampler=sampler, most=self.max_new_tokens, purpose="answers"
        ):
            given = questions.dialogues[number], questions.prompts[number]
            by_number[number] = [Sample(given[0], one.text, given[1], one.tokens, one.reason) for one in completions]
            progress({"step": len(by_number) * self.samples, "total": 2 * count * self.samples})
        return [sample for number in range(count) for sample in by_number[number]]

    def answer(self, samples: Items[Sample], rewards: Items[float], found: Items[Spread]) -> Answer:
        """Means with intervals over dialogues, and some of what was said."""
        length = self._by_dialogue([len(sample.tokens) for sample in samples])
        answers = np.full(len(length), float(self.samples))
        told = {"reward": ratio(self._by_dialogue(rewards), answers, seed=0)}
        apart = [each.kl for each in found if each.kl is not None]
        if apart:
            told["kl"] = ratio(self._by_dialogue(apart), answers, seed=0)
        told["entropy"] = ratio(self._by_dialogue([each.entropy for each in found]), length, seed=0)
        told["length"] = ratio(length, answers, seed=0)
        words = (
            f"{len(length):,} dialogues of a validation split, {self.samples} answers to each, drawn at temperature "
            "1; with 95 % bootstrap intervals over dialogues."
        )
        html = _figures(words, told) + _said(samples[:: self.samples][:SHOWN], rewards[:: self.samples][:SHOWN])
        return Answer({name: each.value for name, each in told.items()}, html)

    def _by_dialogue(self, each: Items[float]) -> np.ndarray:
        """Sums over the answers to each dialogue."""
        return np.asarray(each, float).reshape(-1, self.samples).sum(1)


def opened(folder: str, measured: Measured) -> Any:
    """The model of another run, on the same device and with the same tokenizer, or `UserError`."""
    from bakeoff import load_run

    run = load_run(folder, device=str(measured.device))
    ours, theirs = of_ids(measured.data.tokenizer), of_ids(run.tokenizer)
    if ours != theirs:
        raise UserError(
            f"answers: the tokenizer of reference {folder} has {len(theirs):,} ids and that of the measured run "
            f"{len(ours):,}, and they are not all the same; a KL is between models that read and write the same ids"
        )
    return run.model


def _figures(told: str, found: dict[str, Ratio]) -> str:
    rows = "".join(
        f"<tr><th scope=row>{name}</th><td>{each.value:.4g} <small>({each.low:.4g} to {each.high:.4g})</small></td>"
        f"<td>{UNITS[name]}</td></tr>"
        for name, each in found.items()
    )
    return f"<p>{escape(told)}</p><table><tbody>{rows}</tbody></table>"


def _said(samples: Items[Sample], rewards: Items[float]) -> str:
    """One answer to each of the first dialogues."""
    head = "".join(f"<th scope=col>{cell}</th>" for cell in ("asked", "answered", "reward"))
    rows = "".join(
        f"<tr><td>{_lines(asked(sample))}</td><td>{_lines(sample.text)}</td><td>{reward:.3g}</td></tr>"
        for sample, reward in zip(samples, rewards, strict=True)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll" tabindex=0 role=region aria-label="Answers">{table}</div>'


def _lines(text: str) -> str:
    return f'<span style="white-space: pre-wrap">{escape(text)}</span>'
