"""Generation: one loop for every pattern of mixers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.sampler import Sampler
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.model.answers import Answer, HeardAnswer
from bakeoff.model.decoding import Rows
from bakeoff.model.language_model import LanguageModel
from bakeoff.model.looking import Lookup
from bakeoff.parts.modes import evaluating
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
    log_probabilities : of each new id under the model itself, before the sampler shapes it: those that a forward over
        prompt and answer gives, among the ids that may be drawn (`bakeoff.parts.drawable`); None unless asked for.
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
    first: int = 0,
    stream: Stream | None = None,
    log_probabilities: bool = False,
    lookup: Lookup | None = None,
    copies: int = 1,
) -> list[Completion]:
    """Continue each prompt, all in one batch: `copies` times, the answers to a prompt one after the other.

    Parameters
    ----------
    prompts : texts, or ids; an empty one begins where a document does: after an end id.
    sampler : how ids are chosen; greedy unless given. Padding and mask ids are never chosen.
    max_new_tokens : at most so many ids a row, and no more than the model's `max_length` leaves room for after the
        row's own prompt; by default, as many as that. Refused only where no prompt leaves room for so many.
    stop : strings that end a row where they appear in its new text.
    end : ids that end a row when drawn (in the prompt they do not); by default the tokenizer's.
    seed : what answer j to prompt i draws depends on (seed, i, j) and that prompt: not on other rows, nor on how many
        there are; with more copies, the first ones stay as they were.
    first : number of the first prompt, where these are some of many.
    stream : called as text comes, with whole characters only, and with no part of a stop string; answer j to prompt i
        is row i * copies + j.
    log_probabilities : note those of the new ids.
    lookup : the database that parts which read neighbours are shown what was found in, chunk by chunk as a row grows;
        None: they find nothing.
    copies : answers to each prompt, which is read once for all of them.

    Raises `UserError` for what does not fit the model, `CapabilityError` for a part that cannot decode.
    """
    rows = encoded(tokenizer, prompts)
    if not rows:
        return []
    if copies < 1:
        raise UserError(f"copies is {copies}; each prompt is answered at least once")
    new = _rooms(model, tokenizer, rows, max_new_tokens)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if "" in stops:
        raise UserError("a stop string is empty; every text would end before it begins")
    ends = frozenset([tokenizer.end] if end is None else end)
    answers = _answers(tokenizer, [room for room in new for _ in range(copies)], stops, ends, stream)
    with evaluating(model), torch.inference_mode():
        batch = Rows(model, tokenizer, rows, new, seed, lookup, copies, first)
        _run(batch, answers, sampler or Greedy(), log_probabilities)
    return [
        Completion(each.text, each.tokens, each.log_probabilities if log_probabilities else None, each.reason or "")
        for each in answers
    ]


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


def _answers(
    tokenizer: Tokenizer, rooms: list[int], stops: tuple[str, ...], ends: frozenset[int], stream: Stream | None
) -> list[Answer]:
    """An empty answer for each row; `rooms` has how many ids each may have."""
    if not stops and stream is None:
        return [Answer(tokenizer, ends, room) for room in rooms]
    hears = [partial(stream or _ignore, number) for number in range(len(rooms))]
    return [HeardAnswer(tokenizer, ends, room, stops, hear) for room, hear in zip(rooms, hears, strict=True)]


def _ignore(row: int, piece: str) -> None:
    """Nobody listens."""


def _run(batch: Rows, answers: list[Answer], sampler: Sampler, log: bool) -> None:
    """Draw until every row has ended."""
    active = answers
    batch.prefill()
    while True:
        chosen = batch.choose(sampler)
        tokens = chosen.tolist()
        logs = batch.log_probabilities(chosen).tolist() if log else []
        for place, answer in enumerate(active):
            if answer.reason is None:
                answer.push(tokens[place])
                if log:
                    answer.log_probabilities.append(logs[place])
        ended = [answer.reason is not None for answer in active]
        if all(ended):
            return
        active = [active[place] for place in batch.advance(chosen, ended)]


def _rooms(model: LanguageModel, tokenizer: Tokenizer, rows: list[list[int]], wanted: int | None) -> list[int]:
    """How many new ids there may be after each prompt; refuses what does not fit."""
    if tokenizer.vocab_size > model.context.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} ids and the model {model.context.vocab_size}: "
            "they do not belong together"
        )
    lengths = [len(row) for row in rows]
    limit, shortest, longest = model.context.max_length, min(lengths), max(lengths)
    if longest >= limit:
        raise UserError(
            f"prompt {lengths.index(longest)} has {longest} tokens; the model's max_length is {limit}, "
            f"so a prompt has at most {limit - 1}: shorten it, or train with a longer data.length"
        )
    if wanted is not None and not 1 <= wanted <= limit - shortest:
        raise UserError(
            f"max_new_tokens is {wanted}; after a prompt of {shortest} tokens the model's max_length of {limit} "
            f"leaves room for 1 to {limit - shortest}"
        )
    if shortest < longest:
        _demand_padding(model, shortest, longest)
    return [limit - length if wanted is None else min(wanted, limit - length) for length in lengths]


def _demand_padding(model: LanguageModel, shortest: int, longest: int) -> None:
    parts = [part for part in model.backbone.modules() if isinstance(part, StatefulPart)]
    lacking = [part for part in parts if not part.capabilities.padding]
    if lacking:  # the last is the innermost: a block lacks what its parts lack
        raise CapabilityError(
            f"{type(lacking[-1]).__name__} does not claim `padding`, so prompts of {shortest} and {longest} tokens "
            "cannot share a batch: give prompts of one length, or one prompt at a time"
        )
