"""Generation: one loop for every pattern of mixers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch

from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.sampler import Sampler
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.model.decoding import Rows
from bakeoff.model.language_model import LanguageModel
from bakeoff.model.looking import Lookup
from bakeoff.model.modes import evaluating
from bakeoff.model.reply import Reply
from bakeoff.parts.samplers import Greedy

#: Texts or ids.
Prompts = str | Iterable[str | Items[int]]
#: Called with a row's number and the text that a step has added to it.
Stream = Callable[[int, str], None]


@dataclass(frozen=True)
class Completion:
    """What was generated for one prompt.

    Attributes
    ----------
    text : the new text, cut before a stop string.
    tokens : the new ids; the end id is the last where it was drawn, and nothing follows it.
    log_probabilities : of each new id under the model itself, before the sampler shapes it; None unless asked for.
    reason : "end" (the end id was drawn), "stop" (a stop string appeared) or "length".
    """

    text: str
    tokens: list[int]
    log_probabilities: list[float] | None
    reason: str


def generate(model: LanguageModel, tokenizer: Tokenizer, prompts: Prompts, **options: Any) -> list[str]:
    """The new text for each prompt; options as in `complete`."""
    return [completion.text for completion in complete(model, tokenizer, prompts, **options)]


def complete(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Prompts,
    *,
    sampler: Sampler | None = None,
    max_new_tokens: int | None = None,
    stop: str | Items[str] = (),
    end: Items[int] | None = None,
    seed: int = 0,
    stream: Stream | None = None,
    log_probabilities: bool = False,
    lookup: Lookup | None = None,
) -> list[Completion]:
    """Continue each prompt, all in one batch.

    Parameters
    ----------
    prompts : texts, or ids; an empty one begins where a document does: after an end id.
    sampler : how ids are chosen; greedy unless given. Padding and mask ids are never chosen.
    max_new_tokens : at most so many ids a row; by default, as many as the model's `max_length` leaves room for.
    stop : strings that end a row where they appear in its new text.
    end : ids that end a row when drawn (in the prompt they do not); by default the tokenizer's.
    seed : what row i draws depends on (seed, i) and its own prompt, not on the other rows.
    stream : called as text comes, with whole characters only, and with no part of a stop string.
    lookup : the database that parts which read neighbours are shown what was found in, chunk by chunk as a row grows;
        None: they find nothing.

    Raises `UserError` for what does not fit the model, `CapabilityError` for a part that cannot decode.
    """
    rows = encoded(tokenizer, prompts)
    if not rows:
        return []
    new = _room(model, tokenizer, rows, max_new_tokens)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if "" in stops:
        raise UserError("a stop string is empty; every text would end before it begins")
    ends = frozenset([tokenizer.end] if end is None else end)
    answers = [_Answer(i, Reply(tokenizer, stops), ends, stream) for i in range(len(rows))]
    with evaluating(model), torch.inference_mode():
        batch = Rows(model, tokenizer, rows, new, seed, lookup)
        logs = _run(batch, answers, new, sampler or Greedy(), log_probabilities)
    return [answer.completion(log) for answer, log in zip(answers, logs, strict=True)]


def encoded(tokenizer: Tokenizer, prompts: Prompts) -> list[list[int]]:
    """Ids of each prompt; an empty one becomes the end id. An id outside the vocabulary is an error."""
    rows = []
    for i, prompt in enumerate([prompts] if isinstance(prompts, str) else prompts):
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
        wrong = [token for token in ids if not 0 <= token < tokenizer.vocab_size]
        if wrong:
            raise UserError(f"prompt {i} holds id {wrong[0]}; the tokenizer has ids 0 to {tokenizer.vocab_size - 1}")
        rows.append(ids or [tokenizer.end])
    return rows


class _Answer:
    """One row's new ids and text, and why it ended."""

    def __init__(self, number: int, reply: Reply, ends: frozenset[int], stream: Stream | None):
        self.number, self.reply, self.ends, self.stream = number, reply, ends, stream
        self.tokens: list[int] = []
        self.reason: str | None = None

    def push(self, token: int) -> None:
        """Add an id that was drawn; afterwards `reason` says whether the row has ended."""
        self.tokens.append(token)
        if token in self.ends:
            self.close("end")
            return
        self._show(self.reply.push(token))
        if self.reply.stopped:
            self.close("stop")

    def close(self, reason: str) -> None:
        self.reason = reason
        self._show(self.reply.flush())

    def completion(self, logs: list[float] | None) -> Completion:
        assert self.reason is not None
        shown = None if logs is None else logs[: len(self.tokens)]
        return Completion(self.reply.text, self.tokens, shown, self.reason)

    def _show(self, text: str) -> None:
        if text and self.stream is not None:
            self.stream(self.number, text)


def _run(batch: Rows, answers: list[_Answer], new: int, sampler: Sampler, log: bool) -> list[list[float] | None]:
    """Draw until every row has ended; returns the log-probabilities of each row's steps, or None for each."""
    logs = torch.zeros(len(answers), new) if log else None
    active = answers
    batch.prefill()
    for step in range(new):
        chosen = batch.choose(sampler, step)
        if logs is not None:
            logs[[answer.number for answer in active], step] = batch.log_probabilities(chosen)
        for answer, token in zip(active, chosen.tolist(), strict=True):
            if answer.reason is None:
                answer.push(token)
        alive = [place for place, answer in enumerate(active) if answer.reason is None]
        if not alive or step == new - 1:
            break
        if 2 * len(alive) <= len(active):  # copying the states of half the rows pays from the next step on
            chosen = batch.keep(alive, chosen)
            active = [active[place] for place in alive]
        batch.advance(chosen, [answer.reason is not None for answer in active])
    for answer in active:
        if answer.reason is None:
            answer.close("length")
    return [None] * len(answers) if logs is None else logs.tolist()


def _room(model: LanguageModel, tokenizer: Tokenizer, rows: list[list[int]], wanted: int | None) -> int:
    """How many new ids there may be; refuses what does not fit."""
    if tokenizer.vocab_size > model.context.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} ids and the model {model.context.vocab_size}: "
            "they do not belong together"
        )
    lengths = [len(row) for row in rows]
    limit, longest = model.context.max_length, max(lengths)
    if longest >= limit:
        raise UserError(
            f"prompt {lengths.index(longest)} has {longest} tokens; the model's max_length is {limit}, "
            f"so a prompt has at most {limit - 1}: shorten it, or train with a longer data.length"
        )
    if wanted is not None and not 1 <= wanted <= limit - longest:
        raise UserError(
            f"max_new_tokens is {wanted}; after a prompt of {longest} tokens the model's max_length of {limit} "
            f"leaves room for 1 to {limit - longest}"
        )
    if min(lengths) < longest:
        _demand_padding(model, min(lengths), longest)
    return limit - longest if wanted is None else wanted


def _demand_padding(model: LanguageModel, shortest: int, longest: int) -> None:
    parts = [part for part in model.backbone.modules() if isinstance(part, StatefulPart)]
    lacking = [part for part in parts if not part.capabilities.padding]
    if lacking:  # the last is the innermost: a block lacks what its parts lack
        raise CapabilityError(
            f"{type(lacking[-1]).__name__} does not claim `padding`, so prompts of {shortest} and {longest} tokens "
            "cannot share a batch: give prompts of one length, or one prompt at a time"
        )
