"""What objectives have in common whose model learns to judge."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Feedback, Objective, Sequence, Statistics, Terms, TokenLosses
from bakeoff.interfaces.objective import Model
from torch import Tensor
from torch.nn import functional as F

from bakeoff_align.log_probabilities import mean

Batch = Mapping[str, Tensor | None]


class Judged(NamedTuple):
    """What the scores of a batch amount to.

    `nats` : (B, L), the negative log-likelihood of each judgement, at the token where it is made. `weights` : (B, L), 1
    there and 0 elsewhere. `penalty` : what is added to the sum of the nats. `statistics` : "mean.NAME" pairs.
    """

    nats: Tensor
    weights: Tensor
    penalty: Tensor
    statistics: Statistics


class Judging(Objective):
    """The model reads whole rows, and its head scores what it has read; "nats" and "tokens" are of judgements.

    A language loss may go with it: each token predicts the next with the weight that it has in the batch.

    Parameters
    ----------
    language : coefficient of the language loss, which is a mean over its own tokens.
    """

    reads_dialogues = True
    example_model = MappingProxyType({"head": {"use": "scored"}})

    def __init__(self, *, language: float = 0.0):
        super().__init__()
        if language < 0:
            raise UserError(f"objective.language is {language}; it must be 0 or more")
        self.language = language

    @abstractmethod
    def judged(self, scores: Tensor, batch: Batch) -> Judged:
        """What scores (B, L), of the text up to each token, amount to."""

    def tokens_wanted(self, length: int) -> int:
        """As many as there are inputs: the last token is read, too."""
        return length

    def forward(self, model: Model, batch: Batch) -> tuple[Terms, Statistics]:
        """Term "loss", a mean over judgements, "language", one for each auxiliary loss of the layers, "feedback"."""
        sequence = _sequence(batch)
        result = model.backbone(sequence)
        told = self.judged(model.head.score(result.y), batch)
        nats, count = (told.nats * told.weights).sum(), told.weights.sum()
        terms: Terms = {"loss": (nats + told.penalty, count)}
        for name, extra in model.backbone.layer_losses(result.aux).items():
            terms[name] = (extra * count, count)
        terms |= _feedback(sequence, told, count)
        statistics: Statistics = {"nats": nats.detach(), "tokens": count, **told.statistics}
        statistics |= {f"aux.{name}": value.detach() for name, value in result.aux.items()}
        if self.language:
            total, plain, words = _language(model, result.y, batch)
            terms["language"] = (self.language * total, words)
            statistics["mean.language"] = mean(plain, words)
        return terms, statistics

    def token_losses(self, model: Model, batch: Batch) -> TokenLosses:
        """Nats of each judgement; the id that stands for it is the last of its row, which is no text."""
        result = model.backbone(_sequence(batch))
        told = self.judged(model.head.score(result.y), batch)
        tokens = _tokens(batch)
        return TokenLosses(told.nats, tokens.gather(1, last(batch)[:, None]).expand_as(tokens), told.weights)


class ByLabels(Judging):
    """`sigma(score)` is the probability that the text up to a token is right, where a row has a label for it."""

    def planned(self, rows: int, length: int) -> dict[str, Tensor]:
        return {"labels": torch.zeros(rows, self.tokens_wanted(length))}

    def judged(self, scores: Tensor, batch: Batch) -> Judged:
        labels = batch["labels"]
        assert labels is not None
        there = ~labels.isnan()
        labels, weights = labels.nan_to_num(0.0).to(scores.dtype), there.to(scores.dtype)
        nats = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        of_each = {"accuracy": (scores > 0) == (labels > 0.5), "probability": scores.sigmoid(), "right": labels}
        means = {f"mean.{name}": mean((value * weights).sum(), weights.sum()) for name, value in of_each.items()}
        return Judged(nats * weights, weights, scores.new_zeros(()), means)


def last(batch: Batch) -> Tensor:
    """(B,) long: where the last real token of each row stands."""
    tokens, real = _tokens(batch), batch.get("real")
    if real is None:
        return tokens.new_full((len(tokens),), tokens.shape[1] - 1)
    return torch.where(real, torch.arange(tokens.shape[1], device=tokens.device), 0).amax(1)


def _language(model: Model, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """`(penalised sum, sum of nats, their weight)` of each token's successor in its document."""
    tokens, weights, documents = _tokens(batch), batch["weights"], batch.get("documents")
    assert weights is not None
    weights = F.pad(weights[:, 1:], (0, 1))
    if documents is not None:
        weights = weights * (documents == F.pad(documents[:, 1:], (0, 1), value=-1))
    total, nats = model.head(hidden, F.pad(tokens[:, 1:], (0, 1)), weights)
    return total, nats, weights.sum()


def _feedback(sequence: Sequence, told: Judged, count: Tensor) -> Terms:
    """Term "feedback" for parts whose choices learn from what judgements cost, where there are any."""
    shown: list[Feedback] = [value for name, value in sequence.memory.items() if name.startswith("feedback.")]
    if not shown:
        return {}
    losses = torch.stack([each.loss(told.nats.detach()) for each in shown]).sum(0)
    return {"feedback": ((losses * told.weights).sum(), count)}


def _sequence(batch: Batch) -> Sequence:
    return Sequence(_tokens(batch), documents=batch.get("documents"), real=batch.get("real"))


def _tokens(batch: Batch) -> Tensor:
    tokens = batch["tokens"]
    assert tokens is not None
    return tokens
