"""How sure a model is of what it says, and how far that is from what another would have said."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from itertools import groupby
from typing import Any, NamedTuple

import torch
from bakeoff.interfaces import Sample, Sequence
from bakeoff.parts.modes import evaluating
from torch import Tensor

from bakeoff_align.log_probabilities import CHUNK, normalised


class Spread(NamedTuple):
    """Of one answer, summed over its tokens, in nats.

    `entropy` : of the distributions that its tokens were drawn from. `kl` : of these from another model's; None where
    there is no other.
    """

    entropy: float
    kl: float | None


def spreads(
    model: Any, other: Any, samples: Items[Sample], *, text_size: int, tokens: int
) -> Iterator[dict[int, Spread]]:
    """The spread of answers that `model` drew, by the number of the sample; `other` has the same ids, or is None.

    The KL of an answer is summed over the whole distribution of each of its tokens and not estimated from the token
    that was drawn: its mean over answers is the KL between the models' answers (Amini et al. 2025, arXiv:2504.10637),
    it is never negative, and it varies less than the ratio of the answers' probabilities does.

    Parameters
    ----------
    text_size : of the tokenizer: distributions are over the ids that are drawable.
    tokens : about so many are read at once. Rows of one length share a batch, so that no part has to know padding.
    """
    numbers = sorted(range(len(samples)), key=lambda n: _length(samples[n]))
    for length, group in groupby(numbers, lambda n: _length(samples[n])):
        alike, at_once = list(group), max(1, tokens // length)
        for part in (alike[start : start + at_once] for start in range(0, len(alike), at_once)):
            yield dict(zip(part, _read(model, other, [samples[n] for n in part], text_size), strict=True))


def _length(sample: Sample) -> int:
    """Of prompt and answer."""
    return len(sample.prompt) + len(sample.tokens)


def _read(model: Any, other: Any, samples: Items[Sample], text_size: int) -> list[Spread]:
    """Of answers whose rows are equally long."""
    rows = torch.tensor([sample.prompt + sample.tokens for sample in samples], device=model.backbone.embedding.device)
    places = torch.arange(1, rows.shape[1], device=rows.device)
    answered = places >= torch.tensor([len(sample.prompt) for sample in samples], device=rows.device)[:, None]
    models = [model] if other is None else [model, other]
    with torch.no_grad(), evaluating(model):
        hidden = [(each.head, each.backbone(Sequence(rows[:, :-1])).y[answered]) for each in models]
        found = [_of_chunk([(head, h[start : start + CHUNK]) for head, h in hidden], text_size)
                 for start in range(0, len(hidden[0][1]), CHUNK)]  # fmt: skip
    sizes = [len(sample.tokens) for sample in samples]
    summed = [[float(part.sum()) for part in torch.cat(each).split(sizes)] for each in zip(*found, strict=True)]
    return [Spread(each[0], each[1] if len(each) > 1 else None) for each in zip(*summed, strict=True)]


def _of_chunk(given: Items[tuple[Any, Tensor]], text_size: int) -> tuple[Tensor, ...]:
    """Heads with hidden states (M, D) -> entropy under the first, and KL from it to each of the others, (M,) each."""
    first, *others = (normalised(head(hidden[None])[0], text_size).double() for head, hidden in given)
    p = first.exp()
    apart = (torch.where(p > 0, p * (first - log_q), 0).sum(-1) for log_q in others)
    return (torch.special.entr(p).sum(-1), *apart)
