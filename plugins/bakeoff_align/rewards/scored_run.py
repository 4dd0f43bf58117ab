"""A finished run whose head scores, asked about answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as Items
from functools import cached_property
from typing import Any, NamedTuple

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Sample, Sequence, Template, Tokenizer, Turn
from bakeoff.interfaces.dialogue import ASSISTANT
from torch import Tensor

from bakeoff_align.fingerprints import described, of_model


class Scored(NamedTuple):
    """The ids of an answer as they were read, at least one, and the score at each of them, (n,) float64 on the CPU."""

    tokens: list[int]
    scores: Tensor


class ScoredRun:
    """Reads prompts and answers under the run's own template and tokenizer; opened when it is first asked.

    An answer that was cut off, because it had the most tokens that it may have, is read without an end.

    Parameters
    ----------
    run : its folder. device : where its model computes; None: on a GPU if there is one.
    batch_tokens : about so many tokens are read at once.
    """

    def __init__(self, run: str, *, device: str | None, batch_tokens: int):
        if batch_tokens < 1:
            raise UserError(f"reward.batch_tokens is {batch_tokens}; it must be at least 1")
        self.run, self.device, self.batch_tokens = run, device, batch_tokens

    def scored(self, samples: Items[Sample]) -> list[Scored]:
        """Of each sample, in their order."""
        if not samples:
            return []
        rows = [self._row(sample) for sample in samples]
        found: dict[int, Tensor] = {}
        for numbers in self._batches([len(prompt) + len(answer) for prompt, answer in rows]):
            scores = self._scores([prompt + answer for prompt, answer in (rows[number] for number in numbers)])
            for number, row in zip(numbers, scores, strict=True):
                prompt, answer = rows[number]
                found[number] = row[len(prompt) : len(prompt) + len(answer)]
        return [Scored(answer, found[number]) for number, (_, answer) in enumerate(rows)]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides its scores, but for the device: what stands in the folder now, not its name."""
        told = described(self.template), of_model(self._opened.model, self.tokenizer)
        return hashlib.sha256(f"{told}".encode()).hexdigest()

    @property
    def template(self) -> Template:
        """How turns become ids."""
        return self._opened.template

    @property
    def tokenizer(self) -> Tokenizer:
        """The run's own."""
        return self._opened.tokenizer

    def _row(self, sample: Sample) -> tuple[list[int], list[int]]:
        """Ids of the prompt, and of the answer."""
        prompt = self.template.prompt(sample.dialogue.prompt, self.tokenizer)
        answer = self.template.spoken(Turn(ASSISTANT, sample.text), self.tokenizer)
        if sample.reason == "length" and len(answer) > 1:
            answer = answer[:-1]
        most = self._opened.model.context.max_length
        if len(prompt) + len(answer) > most:
            raise UserError(
                f"the model of {self.run}, which is to judge, reads at most {most} tokens, and an answer with its "
                f"prompt has {len(prompt) + len(answer)}: train it with a longer data.length, or ask for less"
            )
        return prompt, answer

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """Numbers of rows that are read at once: of lengths near each other, or equal where padding is not claimed."""
        claims = self._opened.model.backbone.capabilities
        batch: list[int] = []
        for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
            full = batch and (len(batch) + 1) * lengths[batch[0]] > self.batch_tokens
            unlike = batch and not claims.padding and lengths[number] != lengths[batch[0]]
            if full or unlike or (batch and not claims.row_local):
                yield batch
                batch = []
            batch.append(number)
        if batch:
            yield batch

    def _scores(self, rows: list[list[int]]) -> Tensor:
        """(B, L) float64, of rows padded on the right."""
        model, tokenizer = self._opened.model, self.tokenizer
        longest = max(len(row) for row in rows)
        device = model.backbone.embedding.device
        tokens = torch.tensor([row + [tokenizer.padding] * (longest - len(row)) for row in rows], device=device)
        held = torch.tensor([len(row) for row in rows], device=device)
        real = torch.arange(longest, device=device) < held[:, None]
        with torch.inference_mode():
            hidden = model.backbone(Sequence(tokens, real=None if bool(real.all()) else real)).y
            return model.head.score(hidden).double().cpu()

    @cached_property
    def _opened(self) -> Any:
        from bakeoff import load_run

        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        run = load_run(self.run, device=device)
        template = run.recipe.build("data.template")
        if template is None:
            raise UserError(f"{self.run} was trained on no dialogues: its recipe has no data.template")
        model = run.model
        with torch.inference_mode():  # a head that does not score says so
            model.head.score(torch.zeros(1, 1, model.context.d_model, device=device))
        return _Opened(model, run.tokenizer, template)


class _Opened(NamedTuple):
    model: Any
    tokenizer: Tokenizer
    template: Template
