"""Answers that a model draws, as rows of a collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from typing import Any

import torch
from bakeoff import complete
from bakeoff.errors import UserError
from bakeoff.interfaces.dialogue import Dialogue
from bakeoff.interfaces.policy import Collecting
from bakeoff.interfaces.reward import Sample
from torch import Tensor
from torch.nn import functional as F

#: Tokens that one forward pass over a collection takes at most.
TOKENS = 16384

Rows = dict[str, Tensor]


def drawn(
    model: Any, prompts: Items[Dialogue], collecting: Collecting, *, group: int, max_new_tokens: int
) -> tuple[list[Sample], Rows]:
    """`group` answers to each prompt, one after another, and their rows, on the CPU.

    Rows hold (N, L) each, L = length + 1, padded on the right: `tokens`, `real`, `weights` (1 for what was drawn, the
    end id among it), and `sampled`, its log-probabilities as they were when it was drawn; and `text_size` (N,), of the
    tokenizer, which says from what. `UserError` for a prompt
    that leaves no room for an answer.
    """
    tokenizer = collecting.tokenizer
    read = [collecting.template.prompt(dialogue.prompt, tokenizer) or [tokenizer.end] for dialogue in prompts]
    check_room(read, collecting.length, max_new_tokens)
    said = complete(
        model,
        tokenizer,
        read,
        copies=group,
        sampler=collecting.sampler,
        max_new_tokens=max_new_tokens,
        seed=collecting.seed,
        first=collecting.first,
        log_probabilities=True,
    )
    samples = [
        Sample(prompts[i // group], one.text, read[i // group], one.tokens, one.reason) for i, one in enumerate(said)
    ]
    return samples, laid_out(samples, [one.log_probabilities or [] for one in said], collecting)


def check_room(read: Items[list[int]], length: int, max_new_tokens: int) -> None:
    """Each prompt leaves room for a whole answer."""
    for i, ids in enumerate(read):
        if len(ids) + max_new_tokens > length:
            raise UserError(
                f"prompt {i} has {len(ids)} tokens, and with data.length {length} and max_new_tokens {max_new_tokens} "
                f"a prompt has at most {max(length - max_new_tokens, 0)}: shorten it, allow fewer new tokens, or set "
                f"data.length to at least {len(ids) + max_new_tokens}"
            )


def laid_out(samples: Items[Sample], logs: Items[list[float]], collecting: Collecting) -> Rows:
    """Prompts and answers as padded rows, with the log-probabilities `logs` of the answers' tokens."""
    N, L = len(samples), collecting.length + 1
    tokens = torch.full((N, L), collecting.tokenizer.padding)
    real = torch.zeros(N, L, dtype=torch.bool)
    weights, sampled = torch.zeros(N, L), torch.zeros(N, L)
    for row, (sample, log) in enumerate(zip(samples, logs, strict=True)):
        start, stop = len(sample.prompt), len(sample.prompt) + len(sample.tokens)
        tokens[row, :stop] = torch.tensor(sample.prompt + sample.tokens)
        real[row, :stop] = True
        weights[row, start:stop] = 1
        sampled[row, start:stop] = torch.tensor(log)
    text_size = torch.full((N,), collecting.tokenizer.text_size)
    return {"tokens": tokens, "real": real, "weights": weights, "sampled": sampled, "text_size": text_size}


def looked_at(look: Callable[[Mapping[str, Tensor]], Rows], rows: Rows, device: torch.device) -> Rows:
    """What `look` gives for each target of batches of the rows, (B, T) each, as (N, L) on the CPU: at the target."""
    N, L = rows["tokens"].shape
    found: list[Rows] = []
    for some in torch.arange(N).split(max(1, TOKENS // L)):
        longest = max(2, int(rows["real"][some].sum(1).max()))
        batch = {name: rows[name][some, :longest].to(device) for name in ("tokens", "real", "weights")}
        batch["text_size"] = rows["text_size"][some].to(device)
        found.append({name: F.pad(x, (1, L - 1 - x.shape[1])).cpu() for name, x in look(batch).items()})
    return {name: torch.cat([part[name] for part in found]) for name in found[0]}


def last_real(mask: Tensor) -> Tensor:
    """(N, L) -> (N, L) bool: where the last token of each row's answer stands, be it an end, a stop or a cut."""
    places = torch.arange(mask.shape[1], device=mask.device)
    return mask & (places == torch.where(mask, places, -1).amax(1, keepdim=True))
