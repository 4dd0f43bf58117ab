"""Next-token prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bakeoff.interfaces.neighbours import Neighbours
from bakeoff.interfaces.objective import Model, Objective, Statistics, Terms, TokenLosses
from bakeoff.interfaces.sequence import Sequence


class Shifted(NamedTuple):
    """A batch as inputs, T = L - 1 tokens of each row, and, (B, T) each, the ids to be predicted and their weights."""

    sequence: Sequence
    targets: Tensor
    weights: Tensor


def shifted(batch: Mapping[str, Tensor | None], state: Any = None) -> Shifted:
    """Token t + 1 is predicted from token t of the same document, where both are real.

    It weighs what the batch's `weights` say, or 1. The sequence goes on from the past that `state` holds, and shows the
    batch's neighbours where it has such.
    """
    tokens, documents, real = batch["tokens"], batch.get("documents"), batch.get("real")
    assert tokens is not None
    counts = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
    if real is not None:
        counts = counts & real[:, 1:] & real[:, :-1]
    if documents is not None:
        counts = counts & (documents[:, 1:] == documents[:, :-1])
    weights = batch.get("weights")
    sequence = Sequence(
        tokens[:, :-1],
        documents=None if documents is None else documents[:, :-1],
        real=None if real is None else real[:, :-1],
        memory=Neighbours.of(batch),
        past=None if state is None else state.past,
    )
    counts = counts.to(torch.float32)
    return Shifted(sequence, tokens[:, 1:], counts if weights is None else counts * weights[:, 1:])


class Causal(Objective):
    """Each token predicts the next of its document; what a document begins with is no target.

    Parameters
    ----------
    z_loss : coefficient of the mean squared log-sum-exp of the logits (PaLM, arXiv:2204.02311, uses 1e-4).
    label_smoothing : share of the target's mass that is spread evenly over the vocabulary.
    """

    carries_state = True
    shows_neighbours = True

    def __init__(self, *, z_loss: float = 0.0, label_smoothing: float = 0.0):
        super().__init__()
        if z_loss < 0:
            raise ValueError(f"z_loss is {z_loss}; it must be 0 or more")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must lie in 0 <= label_smoothing < 1")
        self.z_loss, self.label_smoothing = z_loss, label_smoothing

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Without and with penalties."""
        return [{}, {"z_loss": 1e-3, "label_smoothing": 0.1}]

    def tokens_wanted(self, length: int) -> int:
        """One more than there are inputs."""
        return length + 1

    def forward(self, model: Model, batch: Mapping[str, Tensor | None], state: Any = None) -> Any:
        """Term "loss" (penalties included), one for each auxiliary loss of the layers, and "feedback" on choices."""
        given = shifted(batch, state)
        result = model.backbone(given.sequence, state)
        loss, nats = model.head(
            result.y,
            given.targets,
            given.weights,
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
        )
        count = given.weights.sum()
        terms: Terms = {"loss": (loss, count)}
        for name, extra in model.backbone.layer_losses(result.aux).items():
            terms[name] = (extra * count, count)
        terms |= self._feedback(model, given, result.y, count)
        statistics: Statistics = {"nats": nats, "tokens": count}
        statistics |= {f"aux.{name}": value.detach() for name, value in result.aux.items()}
        return (terms, statistics) if state is None else (terms, statistics, result.state)

    def token_losses(self, model: Model, batch: Mapping[str, Tensor | None], state: Any = None) -> TokenLosses:
        """Nats of each next token."""
        given = shifted(batch, state)
        result = model.backbone(given.sequence, state)
        nats = model.head(result.y, given.targets, reduce="none")
        return TokenLosses(nats, given.targets, given.weights, result.state)

    def _feedback(self, model: Model, given: Shifted, hidden: Tensor, count: Tensor) -> Terms:
        """Term "feedback" for parts whose choices learn from what their tokens cost, where there are any."""
        memory = given.sequence.memory
        shown = [value for name, value in memory.items() if name.startswith("feedback.")]
        if not shown:
            return {}
        with torch.no_grad():
            nats = model.head(hidden, given.targets, reduce="none")
        losses = torch.stack([feedback.loss(nats) for feedback in shown]).sum(0)
        return {"feedback": ((losses * given.weights).sum(), count)}
