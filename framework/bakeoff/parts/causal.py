"""Next-token prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bakeoff.interfaces.neighbours import Neighbours
from bakeoff.interfaces.objective import Model, Objective, Statistics, Terms, TokenLosses
from bakeoff.interfaces.sequence import Sequence


class _Shifted(NamedTuple):
    sequence: Sequence
    targets: Tensor
    weights: Tensor


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
        shifted = self._shift(batch, state)
        result = model.backbone(shifted.sequence, state)
        loss, nats = model.head(
            result.y,
            shifted.targets,
            shifted.weights,
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
        )
        count = shifted.weights.sum()
        terms: Terms = {"loss": (loss, count)}
        for name, extra in model.backbone.layer_losses(result.aux).items():
            terms[name] = (extra * count, count)
        terms |= self._feedback(model, shifted, result.y, count)
        statistics: Statistics = {"nats": nats, "tokens": count}
        statistics |= {f"aux.{name}": value.detach() for name, value in result.aux.items()}
        return (terms, statistics) if state is None else (terms, statistics, result.state)

    def token_losses(self, model: Model, batch: Mapping[str, Tensor | None], state: Any = None) -> TokenLosses:
        """Nats of each next token."""
        shifted = self._shift(batch, state)
        result = model.backbone(shifted.sequence, state)
        nats = model.head(result.y, shifted.targets, reduce="none")
        return TokenLosses(nats, shifted.targets, shifted.weights, result.state)

    def _feedback(self, model: Model, shifted: _Shifted, hidden: Tensor, count: Tensor) -> Terms:
        """Term "feedback" for parts whose choices learn from what their tokens cost, where there are any."""
        memory = shifted.sequence.memory
        shown = [value for name, value in memory.items() if name.startswith("feedback.")]
        if not shown:
            return {}
        with torch.no_grad():
            nats = model.head(hidden, shifted.targets, reduce="none")
        losses = torch.stack([feedback.loss(nats) for feedback in shown]).sum(0)
        return {"feedback": ((losses * shifted.weights).sum(), count)}

    def _shift(self, batch: Mapping[str, Tensor | None], state: Any) -> _Shifted:
        tokens, documents, real = batch["tokens"], batch.get("documents"), batch.get("real")
        assert tokens is not None
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        counts = torch.ones_like(targets, dtype=torch.bool)
        if real is not None:
            counts = counts & real[:, 1:] & real[:, :-1]
        if documents is not None:
            counts = counts & (documents[:, 1:] == documents[:, :-1])
        sequence = Sequence(
            inputs,
            documents=None if documents is None else documents[:, :-1],
            real=None if real is None else real[:, :-1],
            memory=Neighbours.of(batch),
            past=None if state is None else state.past,
        )
        return _Shifted(sequence, targets, counts.to(torch.float32))
